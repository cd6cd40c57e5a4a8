<?php
// The http(s) streams of PHP, which read no proxy from the environment: the context names it. They send no chunks and
// keep no connection.

$origin = getenv('ORIGIN');
$proxy = getenv('https_proxy');
$common = ['timeout' => 20, 'ignore_errors' => true, 'protocol_version' => 1.1];
if ($proxy) {
    $common += ['proxy' => str_replace('http://', 'tcp://', $proxy)];
}

function step(string $name, string $path, array $options = []): void
{
    global $origin, $common;
    $body = file_get_contents($origin . $path, false, stream_context_create(['http' => $options + $common]));
    if ($body === false) {
        exit(1);
    }
    $statuses = preg_grep('/^HTTP/', $http_response_header);
    echo $name, ' ', explode(' ', end($statuses))[1], ' ', strlen($body), ' ', hash('sha256', $body), "\n";
}

step('get', '/get');
step('post', '/echo', [
    'method' => 'POST',
    'header' => 'Content-Type: application/xml',
    'content' => str_repeat('0123456789abcdef', 6400),
]);
step('head', '/head', ['method' => 'HEAD']);
step('redirect', '/redirect');
step('gzip', '/gzip', ['header' => 'Accept-Encoding: gzip']);
step('missing', '/missing');
step('stream', '/stream');
for ($number = 0; $number < 5; $number++) {
    step('series', "/series/$number");
}
