//! The clients that are examined: how each asks for a URL, and what helps where it does not come through.

/// One runtime and its own HTTP client.
#[derive(Debug)]
pub(super) struct Client {
    /// As in the table.
    pub(super) name: &'static str,
    /// The programs it may be, the first that is there is taken.
    pub(super) programs: &'static [&'static str],
    /// Makes the program tell its version.
    pub(super) version: &'static [&'static str],
    /// Its arguments before the URL; `{file}` stands for a file with the source.
    pub(super) arguments: &'static [&'static str],
    /// The name and contents of that file.
    pub(super) source: Option<(&'static str, &'static str)>,
    /// What to do where it came past the proxy.
    pub(super) bypasses: &'static str,
    /// What to do where it did not trust the CA; `{bundle}` and `{ca}` stand for the files.
    pub(super) distrusts: &'static str,
}

/// Every client that the doctor knows.
pub(super) const CLIENTS: &[Client] = &[
    Client {
        name: "curl",
        programs: &["curl"],
        version: &["--version"],
        arguments: &["-sS", "--max-time", "20", "-o", "/dev/null", "--fail"],
        source: None,
        bypasses: "set `https_proxy`; see that `~/.curlrc` names no other `proxy` or `noproxy`",
        distrusts: "set `CURL_CA_BUNDLE={bundle}`; see that `~/.curlrc` names no other `cacert`",
    },
    Client {
        name: "wget",
        programs: &["wget"],
        version: &["--version"],
        arguments: &["-nv", "-T", "20", "-t", "1", "-O", "/dev/null"],
        source: None,
        bypasses: "set `https_proxy` in lower case; see that `~/.wgetrc` does not say `use_proxy = off`",
        distrusts: "say `ca_certificate = {bundle}` in `~/.wgetrc`, or set `WGETRC` to a file that does",
    },
    Client {
        name: "python",
        programs: &["python3", "python"],
        version: &["--version"],
        arguments: &["-c", "import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=20).read()"],
        source: None,
        bypasses: "set `https_proxy`; aiohttp needs `ClientSession(trust_env=True)`, bare urllib3 a `ProxyManager`",
        distrusts: "set `SSL_CERT_FILE={bundle}`, and `REQUESTS_CA_BUNDLE` to the same for requests",
    },
    Client {
        name: "node",
        programs: &["node", "nodejs"],
        version: &["--version"],
        arguments: &[
            "-e",
            "fetch(process.argv[1]).then(a => a.text()).catch(e => { console.error(e.cause ?? e); process.exit(1) })",
        ],
        source: None,
        bypasses: "set `NODE_USE_ENV_PROXY=1`, which takes Node 22.21, 24.5 or newer; for older ones say \
                   `ota-pacer env --node-preload`",
        distrusts: "set `NODE_EXTRA_CA_CERTS={ca}` before Node starts",
    },
    Client {
        name: "java",
        programs: &["java"],
        version: &["-version"],
        arguments: &["{file}"],
        source: Some((
            "Ask.java",
            "import java.net.URI;\nimport java.net.http.*;\nimport java.time.Duration;\n\
             public class Ask {\n  public static void main(String[] a) throws Exception {\n    \
             var request = HttpRequest.newBuilder(URI.create(a[0])).timeout(Duration.ofSeconds(20)).build();\n    \
             HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());\n  }\n}\n",
        )),
        bypasses: "set `JAVA_TOOL_OPTIONS` to `-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT`; it reads no other variable",
        distrusts: "add `{ca}` to a trust store and name it with `-Djavax.net.ssl.trustStore=` in `JAVA_TOOL_OPTIONS`",
    },
    Client {
        name: "php",
        programs: &["php"],
        version: &["--version"],
        arguments: &[
            "-r",
            "if (!function_exists('curl_init')) { fwrite(STDERR, 'no curl extension'); exit(3); } \
             $c = curl_init($argv[1]); curl_setopt_array($c, [CURLOPT_RETURNTRANSFER => true, CURLOPT_TIMEOUT => 20]); \
             if (curl_exec($c) === false) { fwrite(STDERR, curl_error($c)); exit(1); }",
            "--",
        ],
        source: None,
        bypasses: "use the curl extension, which reads `https_proxy`; streams and SoapClient need `proxy_host` or a stream \
                   context in code",
        distrusts: "set `curl.cainfo={bundle}` and `openssl.cafile={bundle}` in php.ini, or `PHP_INI_SCAN_DIR` as \
                    `ota-pacer env` prints it",
    },
    Client {
        name: "ruby",
        programs: &["ruby"],
        version: &["--version"],
        arguments: &["-rnet/http", "-e", "Net::HTTP.get_response(URI(ARGV[0])).value"],
        source: None,
        bypasses: "set `http_proxy` in lower case: Net::HTTP reads it for https too",
        distrusts: "set `SSL_CERT_FILE={bundle}`",
    },
    Client {
        name: "go",
        programs: &["go"],
        version: &["version"],
        arguments: &["run", "{file}"],
        source: Some((
            "ask.go",
            "package main\n\nimport (\n\t\"fmt\"\n\t\"net/http\"\n\t\"os\"\n)\n\nfunc main() {\n\t\
             if _, err := http.Get(os.Args[1]); err != nil {\n\t\tfmt.Fprintln(os.Stderr, err)\n\t\tos.Exit(1)\n\t}\n}\n",
        )),
        bypasses: "set `HTTPS_PROXY` before the program starts; a transport of its own needs \
                   `Proxy: http.ProxyFromEnvironment`",
        distrusts: "set `SSL_CERT_FILE={bundle}` (on macOS add `{ca}` to the keychain)",
    },
    Client {
        name: "dotnet",
        programs: &["dotnet"],
        version: &["--version"],
        arguments: &["fsi", "--quiet", "--exec", "{file}"],
        source: Some((
            "ask.fsx",
            "use client = new System.Net.Http.HttpClient(Timeout = System.TimeSpan.FromSeconds 20.0)\n\
             let url = fsi.CommandLineArgs.[fsi.CommandLineArgs.Length - 1]\n\
             client.GetStringAsync(url).Result |> ignore\n",
        )),
        bypasses: "set `https_proxy`; a handler with `UseProxy = false` ignores it",
        distrusts: "set `SSL_CERT_FILE={bundle}` (on Windows and macOS add `{ca}` to the system's store)",
    },
    Client {
        name: "perl",
        programs: &["perl"],
        version: &["-e", "print substr($^V, 1)"],
        arguments: &[
            "-e",
            "eval { require LWP::UserAgent; require LWP::Protocol::https; 1 } or do { print STDERR 'no LWP::UserAgent with \
             LWP::Protocol::https'; exit 3 }; my $a = LWP::UserAgent->new(timeout => 20)->get($ARGV[0]); \
             $a->is_success or do { print STDERR $a->status_line; exit 1 }",
        ],
        source: None,
        bypasses: "set `PERL_LWP_ENV_PROXY=1` beside `https_proxy`",
        distrusts: "set `PERL_LWP_SSL_CA_FILE={bundle}`",
    },
];
