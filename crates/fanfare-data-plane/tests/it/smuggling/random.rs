//! Requests that were damaged at random, in pieces of any size.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::recorder::{self, Recorded, Recorder};
use super::{Stage, answers, take};
use crate::client::get;
use crate::rig::within;

const SEEDS: [&str; 6] = [
    "GET /function/hello/x HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n",
    "POST /function/hello/x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    "POST /function/hello/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nx: y\r\n\r\n",
    "POST http://hello/x HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "PUT /function/hello/x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
    "GET /x?y HTTP/1.1\r\nHost: hello\r\nConnection: keep-alive\r\n\r\n",
];

const TOKENS: [&str; 30] = [
    "\r\n",
    "\n",
    "\r",
    " ",
    "\t",
    "\0",
    ":",
    ",",
    ";",
    "0",
    "5",
    "ffffffffffffffff",
    "\r\n\r\n",
    "0\r\n\r\n",
    "5\r\nhello\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "content-length: 5, 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "transfer-encoding: gzip, chunked\r\n",
    "Transfer_Encoding: chunked\r\n",
    "Transfer-Encoding : chunked\r\n",
    "Host: b\r\n",
    "Connection: close\r\n",
    "Connection: upgrade\r\nUpgrade: h2c\r\n",
    "Connection: content-length, host\r\n",
    "Expect: 100-continue\r\n",
    " folded\r\n",
    "GET /function/hello/evil HTTP/1.1\r\nHost: a\r\n\r\n",
    "HTTP/1.1",
];

/// What is done to bytes that are whole requests.
#[derive(Clone, Debug)]
enum Edit {
    Insert(Index, &'static str),
    Put(Index, u8),
    Remove(Index),
    /// Puts a line in another place, too.
    Repeat(Index, Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        4 => (any::<Index>(), select(TOKENS.to_vec())).prop_map(|(at, token)| Edit::Insert(at, token)),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Edit::Put(at, byte)),
        1 => any::<Index>().prop_map(Edit::Remove),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Edit::Repeat(from, to)),
    ]
}

/// Where lines begin: where damage does most.
fn line_starts(bytes: &[u8]) -> Vec<usize> {
    let after = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    [0].into_iter().chain(after).collect()
}

fn apply(bytes: &mut Vec<u8>, edit: &Edit) {
    let starts = line_starts(bytes);
    match edit {
        // Whole fields where fields begin, other tokens anywhere.
        Edit::Insert(at, token) if token.len() > 6 => {
            let at = starts[at.index(starts.len())];
            bytes.splice(at..at, token.bytes());
        }
        Edit::Insert(at, token) => {
            let at = at.index(bytes.len() + 1);
            bytes.splice(at..at, token.bytes());
        }
        Edit::Put(at, byte) => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Edit::Remove(at) => drop(bytes.remove(at.index(bytes.len()))),
        Edit::Repeat(from, to) => {
            let from = from.index(starts.len());
            let end = starts.get(from + 1).copied().unwrap_or(bytes.len());
            let line = bytes[starts[from]..end].to_vec();
            let to = starts[to.index(starts.len())];
            bytes.splice(to..to, line);
        }
    }
}

/// The requests that the bytes begin with by the strictest reading, and whether they are all there is.
fn strictly(sent: &[u8]) -> (Vec<Recorded>, bool) {
    let mut rest = sent.to_vec();
    let all = std::iter::from_fn(|| recorder::take_request(&mut rest).ok().flatten()).collect();
    (all, rest.is_empty())
}

/// Whether each that was heard is one of those that were said, in their order. Some of these may have been refused.
fn are_among(heard: &[Recorded], (said, whole): &(Vec<Recorded>, bool)) -> bool {
    let method = |one: &Recorded| one.line.split(' ').next().map(str::to_owned);
    let mut said = said.iter();
    heard.iter().all(|heard| {
        let mut same = said.by_ref().filter(|said| said.body == heard.body && method(said) == method(heard));
        // What has more than one meaning may be read in any.
        same.next().is_some() || !whole
    })
}

async fn hold(sent: Vec<u8>, step: usize) {
    let name = String::from_utf8_lossy(&sent).into_owned();
    if name.contains("HTTP/1.0") {
        // Its client cannot be asked whether it is there, and is taken to have left when it says nothing more.
        return;
    }
    let stage = Stage::new().await;
    let mut client = TcpStream::connect(stage.rig.address()).await.unwrap();
    for piece in sent.chunks(step) {
        // It may have had enough.
        if client.write_all(piece).await.is_err() {
            break;
        }
    }
    let _ = client.shutdown().await;
    let mut received = Vec::new();
    let ended = within(&format!("{name:?}: the end"), client.read_to_end(&mut received)).await;
    let heard = stage.take(&name);
    // A reset takes away what was not read yet.
    if ended.is_ok() {
        let answered = answers(&received);
        let ours: Vec<&str> =
            answered.iter().filter(|one| one.is_recorded()).map(|one| one.body.as_str()).collect();
        let expected: Vec<String> =
            heard.iter().map(|one| format!("{} {}", one.line, one.body.len())).collect();
        assert_eq!(ours, expected, "{name:?}: each request has its answer: {answered:?}");
    }
    let said = strictly(&sent);
    assert!(are_among(&heard, &said), "{name:?}: what has one meaning has it here: {heard:?}, not {said:?}");
    // Where the sandbox has seen a part of a request it is replaced.
    let spare = Recorder::new(stage.rig.dir(), 2);
    stage.control.grant(2, &spare.endpoint, 1, None);
    let answer = get(stage.rig.address(), "/function/hello/fresh").await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "GET /fresh HTTP/1.1 0"), "{name:?}");
    let heard = [stage.take(&name), take(&spare, &name)].concat();
    assert_eq!(super::lines(&heard), [("GET /fresh HTTP/1.1", "")], "{name:?}");
}

/// Fewer than usual, as each has a data plane of its own, unless the environment asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(64)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn damaged_requests_are_read_alike_by_everybody_or_refused(
        seeds in proptest::collection::vec(select(SEEDS.to_vec()), 1..4),
        edits in proptest::collection::vec(edit(), 0..5),
        step in prop_oneof![Just(usize::MAX), 1_usize..40],
    ) {
        let mut sent = seeds.concat().into_bytes();
        edits.iter().for_each(|edit| apply(&mut sent, edit));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(hold(sent, step));
    }
}
