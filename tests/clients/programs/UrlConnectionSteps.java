import java.io.InputStream;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.security.MessageDigest;
import java.util.HexFormat;

/** java.net.HttpURLConnection. */
public class UrlConnectionSteps {
    private static final String ORIGIN = System.getenv("ORIGIN");
    private static final byte[] PAYLOAD = "0123456789abcdef".repeat(6400).getBytes();

    public static void main(String[] arguments) throws Exception {
        step("get", "GET", "/get", null, false);
        step("post", "POST", "/echo", PAYLOAD, false);
        step("chunked", "POST", "/echo", PAYLOAD, true);
        step("head", "HEAD", "/head", null, false);
        step("redirect", "GET", "/redirect", null, false);
        step("gzip", "GET", "/gzip", null, false);
        step("missing", "GET", "/missing", null, false);
        step("stream", "GET", "/stream", null, false);
        for (int number = 0; number < 5; number++) {
            step("series", "GET", "/series/" + number, null, false);
        }
    }

    private static void step(String name, String method, String path, byte[] body, boolean chunked) throws Exception {
        HttpURLConnection connection = (HttpURLConnection) URI.create(ORIGIN + path).toURL().openConnection();
        connection.setRequestMethod(method);
        connection.setConnectTimeout(20_000);
        connection.setReadTimeout(20_000);
        if (body != null) {
            connection.setDoOutput(true);
            if (chunked) {
                connection.setChunkedStreamingMode(10_240);
            }
            try (OutputStream out = connection.getOutputStream()) {
                out.write(body);
            }
        }
        int status = connection.getResponseCode();
        InputStream stream = status < 400 ? connection.getInputStream() : connection.getErrorStream();
        byte[] answer = stream.readAllBytes();
        stream.close();
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(answer);
        System.out.println(name + " " + status + " " + answer.length + " " + HexFormat.of().formatHex(digest));
    }
}
