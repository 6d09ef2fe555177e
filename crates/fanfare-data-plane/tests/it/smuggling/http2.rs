//! HTTP/2 has no lines, so that everything could be in its fields. The frames here are made by hand, as no library
//! would make them.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Stage, lines};
use crate::rig::within;

const PREFACE_AND_SETTINGS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

type Fields<'a> = &'a [(&'a str, &'a str)];

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

/// Each field as a literal that no table knows (RFC 7541, section 6.2.2).
fn block(fields: Fields<'_>) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    assert!(fields.iter().all(|(name, value)| name.len() < 127 && value.len() < 127), "in one byte each");
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// Sends a request and its body, in one piece; the first byte of the answer's fields, which is its status, or `None`
/// where the stream or the connection was ended instead.
async fn send(stage: &Stage, name: &str, fields: Fields<'_>, body: Option<&str>) -> Option<u8> {
    let mut client = TcpStream::connect(stage.rig.address()).await.unwrap();
    let ends = if body.is_none() { END_STREAM } else { 0 };
    let mut bytes = [PREFACE_AND_SETTINGS, &frame(HEADERS, END_HEADERS | ends, &block(fields))].concat();
    bytes.extend(body.map(|body| frame(DATA, END_STREAM, body.as_bytes())).unwrap_or_default());
    client.write_all(&bytes).await.unwrap();
    loop {
        let mut head = [0; 9];
        if within(name, client.read_exact(&mut head)).await.is_err() {
            return None;
        }
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        within(name, client.read_exact(&mut payload)).await.unwrap();
        match head[3] {
            HEADERS => return Some(payload[0]),
            RST_STREAM | GOAWAY => return None,
            _ => {}
        }
    }
}

/// In the static table (RFC 7541, appendix A).
const OK: u8 = 0x80 | 8;
const BAD_REQUEST: u8 = 0x80 | 12;

const METHOD: (&str, &str) = (":method", "GET");
const SCHEME: (&str, &str) = (":scheme", "http");
const PATH: (&str, &str) = (":path", "/function/hello/x");
const AUTHORITY: (&str, &str) = (":authority", "a");

/// A good request with more fields.
fn with<'a>(more: Fields<'a>) -> Vec<(&'a str, &'a str)> {
    [&[METHOD, SCHEME, PATH, AUTHORITY], more].concat()
}

/// A good request with another value of one of its first fields.
fn but<'a>(name: &'a str, value: &'a str) -> Vec<(&'a str, &'a str)> {
    let fields = with(&[]).into_iter();
    fields.map(|(field, old)| (field, if field == name { value } else { old })).collect()
}

#[tokio::test]
async fn nothing_in_a_field_of_http2_becomes_a_line() {
    let cases = [
        ("CR LF in a value", with(&[("x", "y\r\nevil: 1")])),
        ("LF in a value", with(&[("x", "y\nevil: 1")])),
        ("CR in a value", with(&[("x", "y\revil: 1")])),
        ("NUL in a value", with(&[("x", "y\0")])),
        ("CR LF in a name", with(&[("x: y\r\nevil", "1")])),
        ("a colon in a name", with(&[("x:y", "1")])),
        ("a space in a name", with(&[("x ", "1")])),
        ("no name", with(&[("", "1")])),
        ("capitals in a name", with(&[("X-Y", "1")])),
        (
            "CR LF in the path",
            but(":path", "/function/hello/x HTTP/1.1\r\nhost: a\r\n\r\nGET /function/hello/evil"),
        ),
        ("LF in the path", but(":path", "/function/hello/x\nevil: 1")),
        ("a space in the path", but(":path", "/function/hello/x HTTP/1.1")),
        ("NUL in the path", but(":path", "/function/hello/x\0")),
        ("DEL in the path", but(":path", "/function/hello/x\x7f")),
        ("an empty path", but(":path", "")),
        ("a path without a slash", but(":path", "function/hello/x")),
        ("an asterisk", but(":path", "*")),
        ("CR LF in the method", but(":method", "GET /function/hello/evil HTTP/1.1\r\nhost: a\r\n\r\nGET")),
        ("a space in the method", but(":method", "GET /function/hello/evil")),
        ("no method", but(":method", "")),
        ("CR LF in the authority", but(":authority", "a\r\nevil: 1")),
        ("a space in the authority", but(":authority", "a b")),
        ("a path in the authority", but(":authority", "a/b")),
        ("a user in the authority", but(":authority", "u@a")),
        ("CR LF in the scheme", but(":scheme", "http\r\nevil: 1")),
        ("another host", with(&[("host", "b")])),
        ("two hosts", with(&[("host", "a"), ("host", "a")])),
        ("a host that is none", vec![METHOD, SCHEME, PATH, ("host", "a b")]),
        ("connection", with(&[("connection", "x")])),
        ("keep-alive", with(&[("keep-alive", "timeout=5")])),
        ("proxy-connection", with(&[("proxy-connection", "x")])),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")])),
        ("upgrade", with(&[("upgrade", "websocket")])),
        ("te", with(&[("te", "gzip")])),
        ("a path twice", with(&[PATH])),
        ("an authority twice", with(&[AUTHORITY])),
        ("a path behind other fields", vec![METHOD, SCHEME, AUTHORITY, ("x", "y"), PATH]),
        ("a field that only answers have", with(&[(":status", "200")])),
        ("an unknown one", with(&[(":evil", "1")])),
        ("no path at all", vec![METHOD, SCHEME, AUTHORITY]),
        ("no method at all", vec![SCHEME, PATH, AUTHORITY]),
        ("no scheme at all", vec![METHOD, PATH, AUTHORITY]),
        ("CONNECT", vec![(":method", "CONNECT"), AUTHORITY]),
    ];
    for (name, fields) in cases {
        let stage = Stage::new().await;
        let status = send(&stage, name, &fields, None).await;
        assert!(status.is_none_or(|status| status == BAD_REQUEST), "{name}: {status:?}");
        assert_eq!(lines(&stage.take(name)), [], "{name}");
        stage.is_sound(name).await;
    }
}

#[tokio::test]
async fn a_body_of_http2_is_as_long_as_it_says() {
    let length = |length| [&[(":method", "POST")], &with(&[])[1..], &[("content-length", length)]].concat();
    for (name, said) in [
        ("longer than it says", "1"),
        ("shorter than it says", "3"),
        ("a plus", "+2"),
        ("a list", "2, 3"),
        ("no number", "x"),
        ("none at all", "0"),
    ] {
        let stage = Stage::new().await;
        let status = send(&stage, name, &length(said), Some("ab")).await;
        assert!(status.is_none_or(|status| status == BAD_REQUEST), "{name}: {status:?}");
        assert_eq!(lines(&stage.take(name)), [], "{name}");
    }
    let stage = Stage::new().await;
    assert_eq!(send(&stage, "right", &length("2"), Some("ab")).await, Some(OK));
    assert_eq!(lines(&stage.take("right")), [("POST /x HTTP/1.1", "ab")]);
}

#[tokio::test]
async fn what_http2_may_say_is_one_request_of_http11() {
    let stage = Stage::new().await;
    let fields = with(&[
        ("host", "A"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("te", "trailers"),
        ("x-own", "y"),
        ("transfer_encoding", "chunked"),
        ("x_fanfare_deadline-ms", "1"),
        ("expect", "100-continue"),
    ]);
    assert_eq!(send(&stage, "good", &fields, None).await, Some(OK));
    let heard = stage.take("good");
    assert_eq!(lines(&heard), [("GET /x HTTP/1.1", "")]);
    let seen = &heard[0];
    assert_eq!(
        (seen.all("host"), seen.all("cookie"), seen.all("x-own")),
        (vec!["a"], vec!["a=1; b=2"], vec!["y"])
    );
    for gone in ["transfer_encoding", "x_fanfare_deadline-ms", "expect"] {
        assert_eq!(seen.all(gone), [""; 0], "{gone}");
    }
    // The field alone names the host, too.
    let fields = [METHOD, SCHEME, PATH, ("host", "b")];
    assert_eq!(send(&stage, "a host only", &fields, None).await, Some(OK));
    assert_eq!(stage.take("a host only")[0].all("host"), ["b"]);
}
