//! What a sandbox answers: any bytes, in pieces of any size.

#![no_main]

use std::cell::RefCell;

use bytes::Bytes;
use fanfare_http1::{Connection, RequestBody, RequestHead};
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method};
use http_body_util::{BodyExt, Empty};
use tokio::io::AsyncWriteExt;

thread_local! {
    static RUNTIME: RefCell<tokio::runtime::Runtime> = RefCell::new(
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers"),
    );
}

libfuzzer_sys::fuzz_target!(|input: (u8, bool, &[u8])| {
    let (piece, is_head, answer) = input;
    RUNTIME.with_borrow(|runtime| runtime.block_on(exchange(usize::from(piece) + 1, is_head, answer)));
});

/// An exchange ends, whatever the other side says, and yields no more than that.
async fn exchange(piece: usize, is_head: bool, answer: &[u8]) {
    let (ours, mut theirs) = tokio::io::duplex(4096);
    let peer = async {
        for bytes in answer.chunks(piece) {
            // Our side may have had enough.
            if theirs.write_all(bytes).await.is_err() {
                break;
            }
        }
        let _ = theirs.shutdown().await;
        theirs
    };
    let client = async {
        let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("test"))]);
        let method = if is_head { Method::HEAD } else { Method::GET };
        let head = RequestHead::new(&method, "/", &headers);
        let sent = Connection::new(ours).send(head, RequestBody::new(Empty::<Bytes>::new()), |_| {}).await;
        if let Ok(response) = sent {
            let mut body = response.into_body();
            let mut bytes = 0;
            while let Some(frame) = body.frame().await {
                match frame {
                    Ok(frame) => bytes += frame.data_ref().map_or(0, Bytes::len),
                    Err(_) => break,
                }
            }
            assert!(bytes < answer.len(), "{bytes} bytes of a body out of {}", answer.len());
            assert!(!is_head || bytes == 0);
        }
    };
    let (_, ()) = tokio::join!(peer, client);
}
