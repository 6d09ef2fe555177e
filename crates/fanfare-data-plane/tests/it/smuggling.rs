//! What a client sends is one request for everybody, or none.
//!
//! Each case goes through a data plane to a sandbox that takes every byte for what it is (`recorder`). What passes is
//! followed by another request on the same connection, which must arrive as itself; what is refused ends the
//! connection, and nothing of it arrives. Either way the sandbox's connection is good for the next client.

mod framing;
mod http2;
mod lines;
mod random;
mod recorder;
mod routing;

use std::time::Duration;

use fanfare_types::FunctionRoute;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::get;
use crate::rig::{Control, Rig, hello, within};
use recorder::{Recorded, Recorder};

/// What becomes of the bytes of a case.
enum Verdict {
    /// They are these requests, each its line and its body; the connection goes on.
    Are(&'static [(&'static str, &'static str)]),
    /// They begin with these requests, and nothing after them is believed: the connection ends.
    End(&'static [(&'static str, &'static str)]),
    /// The head is refused with this status.
    Refused(u16),
    /// The head is passed on, and the body turns out to be broken: no request arrives.
    Broken,
}
use Verdict::{Are, Broken, End, Refused};

struct Case {
    name: &'static str,
    sent: &'static [u8],
    verdict: Verdict,
}

const fn case(name: &'static str, sent: &'static str, verdict: Verdict) -> Case {
    Case { name, sent: sent.as_bytes(), verdict }
}

const CANARY: &str = "GET /function/hello/canary HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
const CANARY_LINE: &str = "GET /canary HTTP/1.1";

/// A data plane with one sandbox that records.
struct Stage {
    rig: Rig,
    control: Control,
    recorder: Recorder,
}

impl Stage {
    async fn new() -> Self {
        // What hangs is seen before the test's own patience ends.
        let route = FunctionRoute { request_timeout: Duration::from_secs(5), ..hello() };
        let (rig, control) = Rig::synced(vec![route]).await;
        let recorder = Recorder::new(rig.dir(), 1);
        control.grant(1, &recorder.endpoint, 1, None);
        Stage { rig, control, recorder }
    }

    /// Sends bytes at once; what comes back until the end.
    async fn exchange(&self, name: &str, sent: &[u8]) -> Vec<Answered> {
        let mut client = TcpStream::connect(self.rig.address()).await.unwrap();
        client.write_all(sent).await.unwrap();
        let mut received = Vec::new();
        // A reset is an end, too.
        let _ = within(&format!("{name}: the end"), client.read_to_end(&mut received)).await;
        answers(&received)
    }

    /// The next client finds the sandbox's connection as it should be.
    async fn is_sound(&self, name: &str) {
        let answer = get(self.rig.address(), "/function/hello/fresh").await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "GET /fresh HTTP/1.1 0"), "{name}");
        let heard = self.take(name);
        assert_eq!(lines(&heard), [("GET /fresh HTTP/1.1", "")], "{name}");
    }

    /// What the sandbox heard, all of it well-formed.
    fn take(&self, name: &str) -> Vec<Recorded> {
        take(&self.recorder, name)
    }
}

fn take(recorder: &Recorder, name: &str) -> Vec<Recorded> {
    let heard: Result<Vec<Recorded>, String> = recorder.take().into_iter().collect();
    heard.unwrap_or_else(|why| panic!("{name}: the sandbox could not read it: {why}"))
}

fn lines(heard: &[Recorded]) -> Vec<(&str, &str)> {
    heard.iter().map(|one| (one.line.as_str(), std::str::from_utf8(&one.body).unwrap())).collect()
}

/// An answer that a client got.
#[derive(Debug)]
struct Answered {
    status: u16,
    head: String,
    body: String,
}

impl Answered {
    /// The sandbox's own.
    fn is_recorded(&self) -> bool {
        self.head.contains("x-recorded: 1\r\n")
    }
}

/// Takes answers apart, informational ones left out; panics where they are no answers.
fn answers(mut received: &[u8]) -> Vec<Answered> {
    let mut all = Vec::new();
    while !received.is_empty() {
        let end = received.windows(4).position(|w| w == b"\r\n\r\n").expect("a whole head") + 4;
        let head = String::from_utf8(received[..end].to_vec()).unwrap();
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        received = &received[end..];
        if status < 200 {
            continue;
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        let body = String::from_utf8(received[..length].to_vec()).unwrap();
        received = &received[length..];
        all.push(Answered { status, head, body });
    }
    all
}

async fn hold(cases: &[Case]) {
    for Case { name, sent, verdict } in cases {
        let stage = Stage::new().await;
        match verdict {
            Are(requests) => {
                let answered = stage.exchange(name, &[sent, CANARY.as_bytes()].concat()).await;
                let heard = stage.take(name);
                let expected: Vec<_> = requests.iter().copied().chain([(CANARY_LINE, "")]).collect();
                assert_eq!(lines(&heard), expected, "{name}: {answered:?}");
                matches(name, &answered, &expected);
            }
            End(requests) => {
                let answered = stage.exchange(name, &[sent, CANARY.as_bytes()].concat()).await;
                assert_eq!(lines(&stage.take(name)), *requests, "{name}: {answered:?}");
                let (ours, rest) = answered.split_at(requests.len());
                matches(name, ours, requests);
                assert!(rest.iter().all(|refused| refused.status == 400), "{name}: {rest:?}");
                // That the connection has ended without an answer to the canary says the rest.
            }
            Refused(status) => {
                let answered = stage.exchange(name, sent).await;
                let statuses: Vec<u16> = answered.iter().map(|answer| answer.status).collect();
                assert_eq!(statuses, [*status], "{name}: {answered:?}");
                let reason = if *status == 431 { "too-large" } else { "bad-request" };
                assert!(answered[0].head.contains(&format!("x-fanfare-reason: {reason}\r\n")), "{name}");
                assert!(answered[0].head.contains("connection: close\r\n"), "{name}: {}", answered[0].head);
                assert_eq!(lines(&stage.take(name)), [], "{name}");
            }
            Broken => {
                let answered = stage.exchange(name, sent).await;
                let statuses: Vec<u16> = answered.iter().map(|answer| answer.status).collect();
                assert_eq!(statuses, [400], "{name}: {answered:?}");
                assert_eq!(lines(&stage.take(name)), [], "{name}");
                // The sandbox has seen a part of it, and is replaced.
                let spare = Recorder::new(stage.rig.dir(), 2);
                stage.control.grant(2, &spare.endpoint, 1, None);
                let answer = get(stage.rig.address(), "/function/hello/fresh").await;
                assert_eq!((answer.status.as_u16(), answer.text()), (200, "GET /fresh HTTP/1.1 0"), "{name}");
                // Or is not, where it was broken from its first byte on.
                let heard = [stage.take(name), take(&spare, name)].concat();
                assert_eq!(lines(&heard), [("GET /fresh HTTP/1.1", "")], "{name}");
                continue;
            }
        }
        stage.is_sound(name).await;
    }
}

/// Each answer is the one to its request.
fn matches(name: &str, answered: &[Answered], requests: &[(&str, &str)]) {
    let bodies: Vec<&str> = answered.iter().map(|answer| answer.body.as_str()).collect();
    let expected: Vec<String> =
        requests.iter().map(|(line, body)| format!("{line} {}", body.len())).collect();
    assert_eq!(bodies, expected, "{name}");
    assert!(answered.iter().all(|answer| answer.status == 200 && answer.is_recorded()), "{name}");
}
