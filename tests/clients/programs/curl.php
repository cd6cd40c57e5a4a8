<?php
// The curl extension of PHP.

$origin = getenv('ORIGIN');
$payload = str_repeat('0123456789abcdef', 6400);
$curl = curl_init();

function step(string $name, string $path, array $options = []): void
{
    global $curl, $origin;
    curl_reset($curl);
    curl_setopt_array($curl, [
        CURLOPT_URL => $origin . $path,
        CURLOPT_RETURNTRANSFER => true,
        CURLOPT_FOLLOWLOCATION => true,
        CURLOPT_TIMEOUT => 20,
    ] + $options);
    $body = curl_exec($curl);
    if ($body === false) {
        fwrite(STDERR, curl_error($curl) . "\n");
        exit(1);
    }
    echo $name, ' ', curl_getinfo($curl, CURLINFO_RESPONSE_CODE), ' ', strlen($body), ' ', hash('sha256', $body), "\n";
}

step('get', '/get');
step('post', '/echo', [CURLOPT_POSTFIELDS => $payload]);
$left = $payload;
step('chunked', '/echo', [
    CURLOPT_POST => true,
    CURLOPT_HTTPHEADER => ['Transfer-Encoding: chunked'],
    CURLOPT_READFUNCTION => function ($curl, $file, int $most) use (&$left): string {
        $piece = substr($left, 0, min($most, 10240));
        $left = substr($left, strlen($piece));
        return $piece;
    },
]);
step('head', '/head', [CURLOPT_NOBODY => true]);
step('redirect', '/redirect');
step('gzip', '/gzip', [CURLOPT_ENCODING => '']);
step('missing', '/missing');
step('stream', '/stream');
for ($number = 0; $number < 5; $number++) {
    step('series', "/series/$number");
}
