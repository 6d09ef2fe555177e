//! Clients that speak TLS, on the port of those that do not.

mod certificates;
mod ends;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use fanfare_data_plane::TlsOptions;
use http::{Request, Version};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::client::{Answer, Connection, complete, request};
use crate::rig::{Control, Rig, hello, within};
use crate::sandbox::{RawSandbox, Sandbox, echo};

/// The name in every certificate.
const NAME: &str = "hello.example";

/// A certificate and its key in files.
struct Pair {
    dir: TempDir,
    certificate: CertificateDer<'static>,
}

impl Pair {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let certificate = Pair::write(&dir.path().join("cert.pem"), &dir.path().join("key.pem"));
        Pair { dir, certificate }
    }

    /// Writes a fresh one to these files.
    fn write(certificate: &Path, key: &Path) -> CertificateDer<'static> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        write_key(key, &made.signing_key.serialize_pem());
        std::fs::write(certificate, made.cert.pem()).unwrap();
        made.cert.der().clone()
    }

    fn options(&self) -> TlsOptions {
        TlsOptions::new(self.dir.path().join("cert.pem"), self.dir.path().join("key.pem"))
    }
}

fn write_key(path: &Path, pem: &str) {
    std::fs::write(path, pem).unwrap();
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

/// A data plane with the function `hello` that shows this pair's certificate.
async fn rig(pair: &Pair, change: impl FnOnce(&mut TlsOptions)) -> (Rig, Control) {
    let mut options = pair.options();
    change(&mut options);
    Rig::synced_with(vec![hello()], |o| o.tls = Some(options)).await
}

/// The same with a sandbox that tells what it was sent.
async fn echoing(pair: &Pair) -> (Rig, Control, Sandbox) {
    let (rig, control) = rig(pair, |_| {}).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    (rig, control, sandbox)
}

/// A connection whose server has this certificate, and what was agreed on.
async fn connect(
    address: SocketAddr,
    certificate: &CertificateDer<'static>,
    alpn: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    within("a handshake", TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

async fn http1(address: SocketAddr, certificate: &CertificateDer<'static>) -> Connection<Full<Bytes>> {
    let stream = connect(address, certificate, &["http/1.1"]).await.unwrap();
    let (send, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    Connection { send }
}

async fn http2(
    address: SocketAddr,
    certificate: &CertificateDer<'static>,
) -> http2::SendRequest<Full<Bytes>> {
    let stream = connect(address, certificate, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()), "the server's first choice");
    let (send, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    send
}

fn says_it_came_by(answer: &Answer, proto: &str) {
    let forwarded = format!("forwarded: for=127.0.0.1;proto={proto};host=");
    for line in [format!("x-forwarded-proto: {proto}\n"), forwarded] {
        assert!(answer.text().contains(&line), "{line} in {}", answer.text());
    }
}

#[tokio::test]
async fn clients_with_and_without_tls_are_served_on_one_port() {
    let pair = Pair::new();
    let (rig, _control, _sandbox) = echoing(&pair).await;
    let address = rig.address();
    for n in 0..3 {
        let mut client = http1(address, &pair.certificate).await;
        says_it_came_by(&client.call(request(&format!("/function/hello/{n}"))).await, "https");
        says_it_came_by(&client.call(request("/function/hello/again")).await, "https");
        let mut plain: Connection<Full<Bytes>> = Connection::open(address).await;
        says_it_came_by(&plain.call(request("/function/hello/plain")).await, "http");
    }
    let get = |uri: &str| Request::get(uri).body(Full::<Bytes>::default()).unwrap();
    let mut send = http2(address, &pair.certificate).await;
    let mut plain = crate::client::http2(address).await;
    for n in 0..3 {
        let response = send.send_request(get(&format!("https://hello.example/{n}"))).await.unwrap();
        assert_eq!(response.version(), Version::HTTP_2);
        let answer = complete(response).await;
        assert!(answer.text().starts_with(&format!("GET /{n}\n")), "{}", answer.text());
        says_it_came_by(&answer, "https");
        let response = plain.send_request(get(&format!("http://hello.example/{n}"))).await.unwrap();
        says_it_came_by(&complete(response).await, "http");
    }
    let behind = request("/function/hello");
    let (mut parts, body) = behind.into_parts();
    parts.headers.insert("x-forwarded-proto", "http".parse().unwrap());
    let seen = http1(address, &pair.certificate).await.call(Request::from_parts(parts, body)).await;
    assert!(seen.text().contains("x-forwarded-proto: http\n"), "what was said before stays: {}", seen.text());
    assert_eq!(rig.data_plane.stats().handshakes_failed, 0);
}

#[tokio::test]
async fn what_is_spoken_is_agreed_on_in_the_handshake() {
    let pair = Pair::new();
    let (rig, _control, _sandbox) = echoing(&pair).await;
    let agreed = |alpn: &'static [&'static str]| {
        let (address, certificate) = (rig.address(), pair.certificate.clone());
        async move {
            let stream = connect(address, &certificate, alpn).await?;
            Ok::<_, std::io::Error>(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
        }
    };
    assert_eq!(agreed(&["http/1.1", "h2"]).await.unwrap().as_deref(), Some(b"h2".as_slice()));
    assert_eq!(agreed(&["http/1.1"]).await.unwrap().as_deref(), Some(b"http/1.1".as_slice()));
    assert_eq!(agreed(&[]).await.unwrap(), None);
    let refused = agreed(&["spdy/3", "http/1.0"]).await.unwrap_err();
    assert!(refused.to_string().contains("NoApplicationProtocol"), "{refused}");
    // Who offers nothing is heard all the same.
    let mut stream = connect(rig.address(), &pair.certificate, &[]).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: hello\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    within("an answer", stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test]
async fn the_host_decides_and_not_the_name_in_the_handshake() {
    let pair = Pair::new();
    let (rig, _control, _sandbox) = echoing(&pair).await;
    let mut client = http1(rig.address(), &pair.certificate).await;
    let to = |host: &str| Request::get("/").header("host", host).body(Full::<Bytes>::default()).unwrap();
    assert_eq!(client.call(to("hello.elsewhere")).await.status, 200, "the handshake said {NAME}");
    assert_eq!(client.call(to("other.example")).await.reason(), "function-not-found");
}

#[tokio::test]
async fn curl_calls_over_tls_in_both_versions() {
    let pair = Pair::new();
    let (rig, _control, _sandbox) = echoing(&pair).await;
    if Command::new("curl").arg("--version").output().await.is_err() {
        return eprintln!("SKIPPED: there is no curl");
    }
    let port = rig.address().port();
    for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let mut curl = Command::new("curl");
        curl.args(["-sS", flag, "--cacert"]).arg(pair.dir.path().join("cert.pem"));
        curl.args(["--resolve", &format!("{NAME}:{port}:127.0.0.1"), "--noproxy", "*"]);
        curl.args(["-d", "body", "-w", "%{http_version}", &format!("https://{NAME}:{port}/p?q")]);
        let output = within("curl", curl.output()).await.unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{said} {}", String::from_utf8_lossy(&output.stderr));
        assert!(said.starts_with("POST /p?q\n"), "{said}");
        assert!(said.ends_with(&format!("\n\nbody{version}")), "{said}");
    }
}

#[tokio::test]
async fn large_bodies_pass_both_ways_over_tls() {
    let pair = Pair::new();
    let (rig, control) = rig(&pair, |_| {}).await;
    let sandbox = Sandbox::new(rig.dir(), 1, |request: Request<hyper::body::Incoming>| async {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        http::Response::new(Full::new(body))
    });
    control.grant(1, &sandbox.endpoint, 1, None);
    let bytes: Bytes = (0..=250_u8).cycle().take(3_000_000).collect::<Vec<_>>().into();
    let post = |uri: &str| {
        Request::post(uri).header("host", "hello.example").body(Full::new(bytes.clone())).unwrap()
    };
    let mut client = http1(rig.address(), &pair.certificate).await;
    let mut send = http2(rig.address(), &pair.certificate).await;
    for _ in 0..2 {
        assert!(client.call(post("/")).await.body == bytes, "over HTTP/1.1");
        let response = within("a response", send.send_request(post("https://hello.example/"))).await.unwrap();
        assert!(complete(response).await.body == bytes, "over HTTP/2");
    }
}

#[tokio::test]
async fn a_websocket_is_joined_over_tls() {
    let pair = Pair::new();
    let (rig, control) = rig(&pair, |_| {}).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = connect(rig.address(), &pair.certificate, &["http/1.1"]).await.unwrap();
    let asked = "GET / HTTP/1.1\r\nhost: hello\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    client.write_all(asked.as_bytes()).await.unwrap();
    let mut connection = sandbox.accept().await;
    assert!(connection.head().await.contains("x-forwarded-proto: https\r\n"));
    let agreed = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nfirst";
    connection.write(agreed).await;
    let mut received = Vec::new();
    while !received.ends_with(b"first") {
        assert!(within("the answer", client.read_buf(&mut received)).await.unwrap() > 0);
    }
    for n in 0..3 {
        client.write_all(format!("ping{n}.").as_bytes()).await.unwrap();
        assert_eq!(connection.read_to(".").await, format!("ping{n}."));
        connection.write("pong.").await;
        let mut pong = [0; 5];
        within("the echo", client.read_exact(&mut pong)).await.unwrap();
        assert_eq!(&pong, b"pong.");
    }
    client.shutdown().await.unwrap();
    connection.closed().await;
    drop(connection);
    assert_eq!(within("the end", client.read_to_end(&mut Vec::new())).await.unwrap(), 0, "with a goodbye");
}
