use std::future::poll_fn;

use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;
use crate::options::Options;

const OWN: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
/// More than the system keeps for a connection.
const ANSWER_BYTES: usize = 32 << 20;

/// A server that has written as much of its answer as its client's system takes, and has the rest.
async fn unread() -> (ClientStream, TcpStream, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let shared = Arc::new(Shared::new(Options::default(), None));
    let transport = Transport::open(stream, &shared, &Default::default()).await.unwrap();
    let state = Arc::<ClientState>::default();
    let mut stream = ClientStream::new(transport, state.clone(), shared);
    state.begin(Version::HTTP_11, false);
    let mut answer = OWN.repeat(ANSWER_BYTES / OWN.len());
    let mut written = 0;
    let wrote = |cx: &mut Context<'_>| {
        while let Poll::Ready(n) = Pin::new(&mut stream).poll_write(cx, &answer[written..]) {
            written += n.unwrap();
        }
        Poll::Ready(())
    };
    poll_fn(wrote).await;
    answer.drain(..written);
    assert!(!answer.is_empty());
    // The server has no more to add to it.
    drop(Answering::new(Response::new(Body::full(Bytes::new())), &state));
    let pending = poll_fn(|cx| Poll::Ready(Pin::new(&mut stream).poll_write(cx, &answer))).await;
    assert!(pending.is_pending());
    (stream, client, answer)
}

async fn write_all(stream: &mut ClientStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let written = poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, bytes)).await.unwrap();
        bytes = &bytes[written..];
    }
}

#[tokio::test]
async fn a_refusal_behind_an_answer_that_was_not_read_is_replaced_and_nothing_of_the_answer() {
    let (mut stream, mut client, rest) = unread().await;
    let reader = tokio::spawn(async move {
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        received
    });
    write_all(&mut stream, &[&rest, OWN].concat()).await;
    drop(stream);
    let received = reader.await.unwrap();
    let answer = OWN.repeat(ANSWER_BYTES / OWN.len());
    let after = received.strip_prefix(&answer[..]).expect("the whole answer");
    let after = String::from_utf8_lossy(after);
    assert!(after.contains("\r\nx-fanfare-reason: bad-request\r\n"), "{after}");
}

#[tokio::test]
async fn an_answer_to_another_request_behind_it_is_left_alone() {
    let (mut stream, mut client, rest) = unread().await;
    stream.state.begin(Version::HTTP_11, false);
    drop(Answering::new(Response::new(Body::full(Bytes::new())), &stream.state));
    let reader = tokio::spawn(async move {
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        received
    });
    write_all(&mut stream, &[&rest, OWN].concat()).await;
    drop(stream);
    assert!(reader.await.unwrap() == OWN.repeat(ANSWER_BYTES / OWN.len() + 1));
}

#[tokio::test]
async fn a_refusal_in_the_midst_of_an_answer_ends_the_connection() {
    let (mut stream, _client, rest) = unread().await;
    let (first, second) = rest.split_at(rest.len() / 2);
    let first = [first, OWN].concat();
    let bufs = [IoSlice::new(&first), IoSlice::new(second)];
    let error = poll_fn(|cx| Pin::new(&mut stream).poll_write_vectored(cx, &bufs)).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn only_a_refusal_of_the_server_is_taken_for_one() {
    let cases: [(&[u8], Option<u16>); 7] = [
        (b"HTTP/1.1 400 Bad Request\r\n", Some(400)),
        (b"HTTP/1.0 431 \r\n", Some(431)),
        (b"HTTP/1.1 200 OK\r\n", None),
        (b"HTTP/1.1 100 Continue\r\n", None),
        (b"HTTP/1.1 4", None),
        (b"\0\0\x12\x04\0\0\0\0\0", None),
        (b"", None),
    ];
    for (bytes, status) in cases {
        assert_eq!(refused(bytes).map(|status| status.as_u16()), status, "{bytes:?}");
    }
}
