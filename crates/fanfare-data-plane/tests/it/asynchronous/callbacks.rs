//! Callbacks.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use fanfare_data_plane::CallbackTargets;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::{Keeping, call, ended, send, status};
use crate::rig::within;
use crate::sandbox::{Sandbox, text};

/// What a receiver was told.
struct Told {
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

/// A receiver that answers with these statuses, one after another, and then 200.
async fn receiver(statuses: &'static [u16]) -> (SocketAddr, mpsc::UnboundedReceiver<Told>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut served = 0;
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let status = statuses.get(served).copied().unwrap_or(200);
            served += 1;
            let tell = tell.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let tell = tell.clone();
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    assert_eq!(parts.method, "POST");
                    let _ = tell.send(Told { path: parts.uri.to_string(), headers: parts.headers, body });
                    let mut response = Response::new(Full::<Bytes>::default());
                    *response.status_mut() = StatusCode::from_u16(status).unwrap();
                    if status == 302 {
                        response.headers_mut().insert("location", "/elsewhere".parse().unwrap());
                    }
                    Ok::<_, Infallible>(response)
                }
            });
            let http = hyper::server::conn::http1::Builder::new();
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        }
    });
    (address, told)
}

#[tokio::test]
async fn a_callback_has_the_result_and_is_repeated_with_the_same_id_until_it_is_taken() {
    let keeping = Keeping::new().await;
    let sandbox = Sandbox::new(keeping.rig.dir(), 1, |_| async {
        let mut response = text("the result");
        response.headers_mut().insert("content-type", "text/thing".parse().unwrap());
        response
    });
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    // A redirection is not followed, and is no success.
    let (address, mut told) = receiver(&[503, 302]).await;
    let url = format!("http://{address}/done?secret=1");
    let id = call(keeping.address(), "hello", &[("x-fanfare-callback", &url)], "").await;
    for _ in 0..3 {
        let told = within("a callback", told.recv()).await.unwrap();
        assert_eq!((told.path.as_str(), &told.body[..]), ("/done?secret=1", &b"the result"[..]));
        for (name, value) in [
            ("x-fanfare-invocation-id", id.as_str()),
            ("x-fanfare-callback-id", id.as_str()),
            ("x-fanfare-state", "succeeded"),
            ("x-fanfare-status", "200"),
            ("x-fanfare-function", "hello"),
            ("x-fanfare-attempt", "1"),
            ("content-type", "text/thing"),
        ] {
            assert_eq!(told.headers[name], value, "{name}");
        }
    }
    let delivered = async {
        loop {
            let document = status(keeping.address(), &id).await;
            assert!(!document.to_string().contains("secret"), "{document}");
            if document["callback"]["state"] == "delivered" {
                return;
            }
        }
    };
    within("the delivery", delivered).await;
    assert!(told.try_recv().is_err(), "once it is taken it is told no more");
}

#[tokio::test]
async fn ends_without_an_answer_are_told_too() {
    let keeping = Keeping::new().await;
    let (address, mut told) = receiver(&[]).await;
    let url = format!("http://localhost:{}/", address.port());
    let id = call(keeping.address(), "hello", &[("x-fanfare-callback", &url)], "").await;
    send(keeping.address(), "DELETE", &format!("/async/{id}"), &[], "").await;
    let told = within("a callback", told.recv()).await.unwrap();
    assert_eq!(told.headers["x-fanfare-state"], "cancelled");
    let document: serde_json::Value = serde_json::from_slice(&told.body).unwrap();
    assert_eq!((document["id"].as_str(), document["state"].as_str()), (Some(&*id), Some("cancelled")));
}

#[tokio::test]
async fn names_that_lead_to_forbidden_addresses_lead_nowhere() {
    let keeping = Keeping::with(|options| options.callbacks = CallbackTargets::Private).await;
    let sandbox = Sandbox::named(keeping.rig.dir(), 1);
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    let (address, mut told) = receiver(&[]).await;
    // An address is refused at once; a name is known only when it is looked up.
    let url = format!("http://{address}/");
    let fields: &[(&str, &str)] = &[("x-fanfare-callback", &url)];
    let answer = send(keeping.address(), "POST", "/async-function/hello", fields, "").await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (400, "bad-request"));
    let url = format!("http://localhost:{}/", address.port());
    let id = call(keeping.address(), "hello", &[("x-fanfare-callback", &url)], "").await;
    ended(keeping.address(), &id).await;
    let tried = async {
        while status(keeping.address(), &id).await["callback"]["failed_tries"].as_u64() < Some(1) {}
    };
    within("a try", tried).await;
    assert!(told.try_recv().is_err());
}

#[tokio::test]
async fn the_platforms_own_ports_are_never_called_back() {
    let (receiving, mut told) = receiver(&[]).await;
    let keeping = Keeping::with(|options| options.own_addresses.push(receiving)).await;
    let sandbox = Sandbox::named(keeping.rig.dir(), 1);
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    for own in [receiving, keeping.address()] {
        let url = format!("http://{own}/v1/functions");
        let fields: &[(&str, &str)] = &[("x-fanfare-callback", &url)];
        let answer = send(keeping.address(), "POST", "/async-function/hello", fields, "").await;
        assert_eq!((answer.status.as_u16(), answer.reason()), (400, "bad-request"), "{own}");
        assert!(answer.text().contains("the platform itself"), "{answer:?}");
        // A name is known to lead there only when it is looked up.
        let url = format!("http://localhost:{}/", own.port());
        let id = call(keeping.address(), "hello", &[("x-fanfare-callback", &url)], "").await;
        ended(keeping.address(), &id).await;
        let tried = async {
            while status(keeping.address(), &id).await["callback"]["failed_tries"].as_u64() < Some(1) {}
        };
        within("a try", tried).await;
    }
    assert!(told.try_recv().is_err());
}
