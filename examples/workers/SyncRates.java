// Pushes room availability to an OTA, property by property, and prints each status: once with each of Java's own clients.
//
//     OTA_URL=https://supply-xml.booking.com OTA_USER=machine-account OTA_PASSWORD=... java SyncRates.java 25

import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.Base64;

public class SyncRates {
    private static final HttpClient CLIENT = HttpClient.newHttpClient();

    public static void main(String[] arguments) throws Exception {
        int count = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 25;
        String path = arguments.length > 1 ? arguments[1] : "/hotels/xml/availability";
        URI uri = URI.create(System.getenv("OTA_URL")).resolve(path);
        String account = System.getenv("OTA_USER") + ":" + System.getenv("OTA_PASSWORD");
        String authorization = "Basic " + Base64.getEncoder().encodeToString(account.getBytes());
        for (int number = 0; number < count; number++) {
            byte[] body = ("<request><hotel_id>" + (1000 + number) + "</hotel_id></request>").getBytes();
            boolean isOld = number % 2 == 1;
            System.out.println(isOld ? postOld(uri, authorization, body) : post(uri, authorization, body));
        }
    }

    private static int post(URI uri, String authorization, byte[] body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(uri)
            .header("Authorization", authorization)
            .header("Content-Type", "application/xml")
            .POST(BodyPublishers.ofByteArray(body))
            .build();
        return CLIENT.send(request, BodyHandlers.discarding()).statusCode();
    }

    private static int postOld(URI uri, String authorization, byte[] body) throws Exception {
        HttpURLConnection connection = (HttpURLConnection) uri.toURL().openConnection();
        connection.setDoOutput(true);
        connection.setRequestProperty("Authorization", authorization);
        connection.setRequestProperty("Content-Type", "application/xml");
        connection.getOutputStream().write(body);
        int status = connection.getResponseCode();
        InputStream answer = status < 400 ? connection.getInputStream() : connection.getErrorStream();
        if (answer != null) {
            answer.readAllBytes();
        }
        return status;
    }
}
