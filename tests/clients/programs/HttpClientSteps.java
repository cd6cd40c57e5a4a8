import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.HexFormat;

/** java.net.http.HttpClient. */
public class HttpClientSteps {
    private static final String ORIGIN = System.getenv("ORIGIN");
    private static final byte[] PAYLOAD = "0123456789abcdef".repeat(6400).getBytes();
    private static final HttpClient CLIENT =
            HttpClient.newBuilder().followRedirects(HttpClient.Redirect.NORMAL).build();

    public static void main(String[] arguments) throws Exception {
        step("get", "GET", "/get", BodyPublishers.noBody());
        step("post", "POST", "/echo", BodyPublishers.ofByteArray(PAYLOAD));
        step("chunked", "POST", "/echo", BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(PAYLOAD)));
        step("head", "HEAD", "/head", BodyPublishers.noBody());
        step("redirect", "GET", "/redirect", BodyPublishers.noBody());
        step("gzip", "GET", "/gzip", BodyPublishers.noBody());
        step("missing", "GET", "/missing", BodyPublishers.noBody());
        step("stream", "GET", "/stream", BodyPublishers.noBody());
        for (int number = 0; number < 5; number++) {
            step("series", "GET", "/series/" + number, BodyPublishers.noBody());
        }
    }

    private static void step(String name, String method, String path, BodyPublisher body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(ORIGIN + path))
                .timeout(Duration.ofSeconds(20)).method(method, body).build();
        HttpResponse<byte[]> answer = CLIENT.send(request, BodyHandlers.ofByteArray());
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(answer.body());
        System.out.println(name + " " + answer.statusCode() + " " + answer.body().length + " "
                + HexFormat.of().formatHex(digest));
    }
}
