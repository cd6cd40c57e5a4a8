# LWP::UserAgent of Perl.
use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use HTTP::Request;
use LWP::UserAgent;

my $payload = '0123456789abcdef' x 6400;
my $agent   = LWP::UserAgent->new(keep_alive => 1, timeout => 20);

sub step {
    my ($name, $method, $path, $headers, $content) = @_;
    my $answer = $agent->request(HTTP::Request->new($method, $ENV{ORIGIN} . $path, $headers, $content));
    die $answer->decoded_content if ($answer->header('Client-Warning') // '') eq 'Internal response';
    my $body = $answer->content;
    print join(' ', $name, $answer->code, length $body, sha256_hex($body)), "\n";
}

my @pieces = unpack '(a10240)*', $payload;
step('get',      'GET',  '/get');
step('post',     'POST', '/echo', ['Content-Type' => 'application/xml'], $payload);
step('chunked',  'POST', '/echo', ['Content-Type' => 'application/xml'], sub { shift(@pieces) // '' });
step('head',     'HEAD', '/head');
step('redirect', 'GET',  '/redirect');
step('gzip',     'GET',  '/gzip', ['Accept-Encoding' => 'gzip']);
step('missing',  'GET',  '/missing');
step('stream',   'GET',  '/stream');
step('series',   'GET',  "/series/$_") for 0 .. 4;
