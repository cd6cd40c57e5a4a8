# Net::HTTP of Ruby, which follows no redirects.

require "digest"
require "net/http"
require "stringio"

ORIGIN = URI(ENV.fetch("ORIGIN"))
PAYLOAD = "0123456789abcdef" * 6400

Net::HTTP.start(ORIGIN.host, ORIGIN.port, use_ssl: true, open_timeout: 20, read_timeout: 20) do |http|
  step = lambda do |name, request|
    answer = http.request(request)
    body = answer.body.to_s
    puts [name, answer.code, body.bytesize, Digest::SHA256.hexdigest(body)].join(" ")
  end

  step.call("get", Net::HTTP::Get.new("/get"))
  post = Net::HTTP::Post.new("/echo", "Content-Type" => "application/xml")
  post.body = PAYLOAD
  step.call("post", post)
  chunked = Net::HTTP::Post.new("/echo", "Content-Type" => "application/xml", "Transfer-Encoding" => "chunked")
  chunked.body_stream = StringIO.new(PAYLOAD)
  step.call("chunked", chunked)
  step.call("head", Net::HTTP::Head.new("/head"))
  step.call("redirect", Net::HTTP::Get.new("/redirect"))
  step.call("gzip", Net::HTTP::Get.new("/gzip"))
  step.call("missing", Net::HTTP::Get.new("/missing"))
  step.call("stream", Net::HTTP::Get.new("/stream"))
  5.times { |number| step.call("series", Net::HTTP::Get.new("/series/#{number}")) }
end
