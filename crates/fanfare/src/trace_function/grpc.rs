//! `faas.Executor/Execute`: the same over gRPC.

use std::convert::Infallible;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::Incoming;
use prost::Message;

use super::Function;
use super::http::{Body, micros};
use super::work::Work;

const MEDIA_TYPE: &str = "application/grpc";
const METHOD: &str = "/faas.Executor/Execute";
/// Bytes of a request, which is three fields.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// gRPC's status codes, of those that are used.
const OK: u32 = 0;
const INVALID_ARGUMENT: u32 = 3;
const UNIMPLEMENTED: u32 = 12;
const INTERNAL: u32 = 13;

#[derive(Clone, PartialEq, Message)]
struct FaasRequest {
    #[prost(string, tag = "1")]
    message: String,
    #[prost(uint32, tag = "2")]
    runtime_in_milli_sec: u32,
    #[prost(uint32, tag = "3")]
    memory_in_mebi_bytes: u32,
}

#[derive(Clone, PartialEq, Message)]
struct FaasReply {
    #[prost(string, tag = "1")]
    message: String,
    #[prost(uint32, tag = "2")]
    duration_in_micro_sec: u32,
    #[prost(uint32, tag = "3")]
    memory_usage_in_kb: u32,
}

/// Whether a request is a call of gRPC.
pub(super) fn is_call(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media_type.is_some_and(|media_type| media_type.starts_with(MEDIA_TYPE))
}

/// Answers a call.
pub(super) async fn answer(function: &Function, request: Request<Incoming>) -> Response<Body> {
    if request.uri().path() != METHOD {
        return ended(UNIMPLEMENTED, "there is faas.Executor/Execute alone");
    }
    let Ok(body) = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect().await else {
        return ended(INVALID_ARGUMENT, "the message is too large, or broke off");
    };
    match decode(&body.to_bytes()) {
        Some(asked) => execute(function, asked).await,
        None => ended(INVALID_ARGUMENT, "this is no message of type faas.FaasRequest"),
    }
}

async fn execute(function: &Function, asked: FaasRequest) -> Response<Body> {
    // InVitro takes what follows its functions' common beginning for the instance, and counts those.
    let instance = format!("{}-{}", function.name, function.sandbox);
    let (message, took) = if function.empty {
        (format!("OK - EMPTY - {instance}"), 0)
    } else {
        let work = Work::new(asked.runtime_in_milli_sec, 0, asked.memory_in_mebi_bytes);
        match tokio::task::spawn_blocking(move || work.run()).await {
            Ok(done) if done.had_memory => (format!("OK - {instance}"), micros(done.took)),
            Ok(done) => (format!("FAILURE - mem_alloc - {instance}"), micros(done.took)),
            Err(_) => return ended(INTERNAL, "the work broke off"),
        }
    };
    let reply = FaasReply {
        message,
        duration_in_micro_sec: u32::try_from(took).unwrap_or(u32::MAX),
        memory_usage_in_kb: asked.memory_in_mebi_bytes.saturating_mul(1024),
    };
    let frames = [Frame::data(encode(&reply)), Frame::trailers(status(OK, ""))];
    respond(StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>))).boxed())
}

/// The one message of a call.
fn decode(body: &[u8]) -> Option<FaasRequest> {
    let (prefix, message) = body.split_at_checked(PREFIX_BYTES)?;
    let [compressed, length @ ..] = <[u8; PREFIX_BYTES]>::try_from(prefix).ok()?;
    let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
    (compressed == 0 && message.len() == length).then(|| FaasRequest::decode(message).ok()).flatten()
}

fn encode(reply: &FaasReply) -> Bytes {
    let length = reply.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + length);
    out.put_u8(0);
    // A line of text and two numbers.
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    out.put_slice(&reply.encode_to_vec());
    out.freeze()
}

/// A call that ended without a message.
fn ended(code: u32, why: &str) -> Response<Body> {
    let trailers = Frame::trailers(status(code, why));
    respond(StreamBody::new(stream::iter([Ok::<_, Infallible>(trailers)])).boxed())
}

fn status(code: u32, why: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(code));
    if let Ok(why) = HeaderValue::from_str(why)
        && !why.is_empty()
    {
        trailers.insert("grpc-message", why);
    }
    trailers
}

fn respond(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_what_the_protocol_says() {
        let asked = b"\0\0\0\0\x0e\x0a\x07nothing\x10\xe8\x07\x18\x01";
        let expected =
            FaasRequest { message: "nothing".into(), runtime_in_milli_sec: 1_000, memory_in_mebi_bytes: 1 };
        assert_eq!(decode(asked), Some(expected));
        assert_eq!(decode(b"\0\0\0\0\0"), Some(FaasRequest::default()));
        for wrong in
            [&b""[..], b"\0\0\0\0", b"\x01\0\0\0\0", b"\0\0\0\0\x01", b"\0\0\0\0\0\0", b"\0\0\0\0\x01\x0a"]
        {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
        let reply = FaasReply { message: "OK".into(), duration_in_micro_sec: 5, memory_usage_in_kb: 1_024 };
        assert_eq!(&encode(&reply)[..], b"\0\0\0\0\x09\x0a\x02OK\x10\x05\x18\x80\x08");
    }
}
