// net/http of Go.
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

var (
	client  = &http.Client{Timeout: 20 * time.Second}
	origin  = os.Getenv("ORIGIN")
	payload = strings.Repeat("0123456789abcdef", 6400)
)

func step(name, method, path string, body io.Reader) {
	request, err := http.NewRequest(method, origin+path, body)
	fail(err)
	answer, err := client.Do(request)
	fail(err)
	defer answer.Body.Close()
	bytes, err := io.ReadAll(answer.Body)
	fail(err)
	fmt.Printf("%s %d %d %x\n", name, answer.StatusCode, len(bytes), sha256.Sum256(bytes))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	step("get", "GET", "/get", nil)
	step("post", "POST", "/echo", strings.NewReader(payload))
	step("chunked", "POST", "/echo", io.MultiReader(strings.NewReader(payload)))
	step("head", "HEAD", "/head", nil)
	step("redirect", "GET", "/redirect", nil)
	step("gzip", "GET", "/gzip", nil)
	step("missing", "GET", "/missing", nil)
	step("stream", "GET", "/stream", nil)
	for number := 0; number < 5; number++ {
		step("series", "GET", fmt.Sprintf("/series/%d", number), nil)
	}
}
