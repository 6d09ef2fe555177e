use fanfare_types::FunctionId;
use parking_lot::Mutex;

use super::*;

/// A proxy whose settings name `allowed`, and what its log says.
async fn proxy(allowed: u16) -> (TcpStream, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let url = format!("http://127.0.0.1:{allowed}/simple");
    let policy = Policy::new(&PIP, [("PIP_INDEX_URL", url.as_str())].into_iter(), "");
    let said = Arc::<Mutex<String>>::default();
    let lines = said.clone();
    let log = Log::new(Arc::new(move |line| lines.lock().push_str(&line.text)), FunctionId(1), None);
    tokio::spawn(serve(listener, Arc::new(policy), log));
    (TcpStream::connect(address).await.unwrap(), said)
}

/// A server that answers one connection with what it was sent.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = vec![0; 1024];
        let n = stream.read(&mut bytes).await.unwrap();
        stream.write_all(&bytes[..n]).await.unwrap();
    });
    port
}

async fn answer(stream: &mut TcpStream) -> String {
    let mut all = String::new();
    stream.read_to_string(&mut all).await.unwrap();
    all
}

#[tokio::test]
async fn a_tunnel_leads_to_what_is_named() {
    let port = echo().await;
    let (mut stream, _) = proxy(port).await;
    let request = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\nhello");
    stream.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await, "HTTP/1.1 200 OK\r\n\r\nhello");
}

#[tokio::test]
async fn a_plain_request_goes_on_in_origin_form() {
    let port = echo().await;
    let (mut stream, _) = proxy(port).await;
    let request = format!(
        "GET http://127.0.0.1:{port}/a?b HTTP/1.1\r\nHost: h\r\nProxy-Connection: keep-alive\r\nConnection: keep-alive\r\nAccept: */*\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let want = "GET /a?b HTTP/1.1\r\nHost: h\r\nAccept: */*\r\nConnection: close\r\n\r\n";
    assert_eq!(answer(&mut stream).await, want);
}

#[tokio::test]
async fn the_hosts_own_services_are_refused() {
    let port = echo().await;
    for target in
        [format!("127.0.0.1:{port}"), "169.254.169.254:80".into(), "localhost:443".into(), "[::1]:80".into()]
    {
        let (mut stream, said) = proxy(1).await;
        stream.write_all(format!("CONNECT {target} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        let answer = answer(&mut stream).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 403 no connection to {target}: only public")),
            "{answer}"
        );
        assert!(said.lock().contains("only public"), "{}", said.lock());
    }
}

#[tokio::test]
async fn what_is_no_request_ends_the_connection() {
    let long = format!("GET http://h/{} HTTP/1.1\r\n", "x".repeat(HEAD_BYTES_MAX + 4096));
    for bad in ["nonsense\r\n\r\n", "GET /path HTTP/1.1\r\n\r\n", "CONNECT u@h:1 HTTP/1.1\r\n\r\n", &long] {
        let (mut stream, _) = proxy(1).await;
        let _ = stream.write_all(bad.as_bytes()).await;
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all).await;
        assert_eq!(all, b"", "{bad:.40}");
    }
}
