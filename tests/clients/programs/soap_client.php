<?php
// SoapClient, which reads no proxy from the environment. `location` is all it takes to ask the gateway: the addresses in a
// WSDL are the OTA's own.

$origin = getenv('ORIGIN');
$client = new SoapClient(null, [
    'location' => $origin . '/echo',
    'uri' => 'urn:ota',
    'trace' => true,
    'compression' => SOAP_COMPRESSION_ACCEPT,
    'connection_timeout' => 20,
]);

function step(string $name, string $path, string $payload = '<Envelope/>'): void
{
    global $client, $origin;
    try {
        $body = (string) $client->__doRequest($payload, $origin . $path, 'urn:ota#' . $name, SOAP_1_1);
    } catch (SoapFault $fault) {
        $body = $fault->getMessage();
    }
    $status = explode(' ', $client->__getLastResponseHeaders() ?? '')[1] ?? 'none';
    echo $name, ' ', $status, ' ', strlen($body), ' ', hash('sha256', $body), "\n";
}

step('post', '/echo', str_repeat('0123456789abcdef', 6400));
step('redirect', '/redirect');
step('gzip', '/gzip');
step('missing', '/missing');
step('stream', '/stream');
for ($number = 0; $number < 5; $number++) {
    step('series', "/series/$number");
}
