//! gRPC end to end, with a client and a server that know nothing of the platform.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use fanfare_types::FunctionRoute;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use http::uri::PathAndQuery;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::rig::{Control, Rig, hello, within};

/// Says what it is told.
#[derive(Clone)]
struct Echo;

type Codec = ProstCodec<String, String>;
type Said = BoxStream<'static, Result<String, Status>>;

impl tonic::server::NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl tonic::server::UnaryService<String> for Echo {
    type Response = String;
    type Future = BoxFuture<'static, Result<Response<String>, Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        async move {
            let said = request.into_inner();
            if said == "fail" {
                return Err(Status::with_details(Code::FailedPrecondition, "not now", "why".into()));
            }
            let mut response = Response::new(said);
            response.metadata_mut().insert("x-head", "1".parse().unwrap());
            Ok(response)
        }
        .boxed()
    }
}

impl tonic::server::StreamingService<String> for Echo {
    type Response = String;
    type ResponseStream = Said;
    type Future = BoxFuture<'static, Result<Response<Said>, Status>>;

    fn call(&mut self, request: Request<Streaming<String>>) -> Self::Future {
        let said = request.into_inner().map(|said| match said {
            Ok(said) if said == "fail" => Err(Status::data_loss("in the middle")),
            other => other,
        });
        std::future::ready(Ok(Response::new(said.boxed()))).boxed()
    }
}

impl tower::Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        async move {
            let mut server = tonic::server::Grpc::new(Codec::default());
            Ok(match request.uri().path() {
                "/test.Echo/Say" => server.unary(Echo, request).await,
                _ => server.streaming(Echo, request).await,
            })
        }
        .boxed()
    }
}

struct World {
    rig: Rig,
    control: Control,
    client: Grpc<Channel>,
}

async fn world() -> World {
    let (rig, control) = Rig::synced(vec![FunctionRoute { concurrency: 50, ..hello() }]).await;
    let path = rig.dir().join("grpc.sock");
    let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    tokio::spawn(Server::builder().add_service(Echo).serve_with_incoming(incoming));
    control.grant(1, &format!("h2c+unix:{}", path.display()), 50, None);
    let endpoint = Endpoint::from_shared(format!("http://{}", rig.address())).unwrap();
    let endpoint = endpoint.origin("http://hello.example".parse().unwrap());
    let mut client = Grpc::new(within("a channel", endpoint.connect()).await.unwrap());
    client.ready().await.unwrap();
    World { rig, control, client }
}

fn method(name: &'static str) -> PathAndQuery {
    PathAndQuery::from_static(name)
}

#[tokio::test]
async fn grpc_unary_calls_pass_with_metadata_and_status() {
    let World { mut client, rig: _rig, control: _control } = world().await;
    let said = "x".repeat(100_000);
    for _ in 0..3 {
        let call = client.unary(Request::new(said.clone()), method("/test.Echo/Say"), Codec::default());
        let response = within("a response", call).await.unwrap();
        assert_eq!(response.metadata().get("x-head").unwrap(), "1");
        assert_eq!(response.metadata().get("grpc-status").map(|s| s.to_str().unwrap()), Some("0"));
        assert!(*response.get_ref() == said);
        client.ready().await.unwrap();
    }
    let call = client.unary(Request::new("fail".to_owned()), method("/test.Echo/Say"), Codec::default());
    let status = within("a status", call).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message(), status.details()),
        (Code::FailedPrecondition, "not now", &b"why"[..])
    );
}

#[tokio::test]
async fn grpc_streams_pass_both_ways_at_once_and_end_with_their_trailers() {
    let World { mut client, rig: _rig, control: _control } = world().await;
    for ends_well in [true, false] {
        let (say, said) = mpsc::unbounded_channel();
        let request = Request::new(UnboundedReceiverStream::new(said));
        let call = client.streaming(request, method("/test.Echo/Chat"), Codec::default());
        let mut answers = within("a head before any message", call).await.unwrap().into_inner();
        for n in 0..20 {
            say.send(format!("message {n}")).unwrap();
            let answer = within("an answer to each", answers.message()).await.unwrap();
            assert_eq!(answer, Some(format!("message {n}")));
        }
        if ends_well {
            drop(say);
            assert_eq!(within("the end", answers.message()).await.unwrap(), None);
        } else {
            say.send("fail".to_owned()).unwrap();
            let status = within("the end", answers.message()).await.unwrap_err();
            assert_eq!((status.code(), status.message()), (Code::DataLoss, "in the middle"));
        }
        client.ready().await.unwrap();
    }
}

#[tokio::test]
async fn grpc_calls_of_many_clients_share_a_sandbox() {
    let World { client, rig: _rig, control: _control } = world().await;
    let calls = (0..50).map(|n| {
        let mut client = client.clone();
        async move {
            client.ready().await.unwrap();
            let call = client.unary(Request::new(n.to_string()), method("/test.Echo/Say"), Codec::default());
            assert_eq!(within("a response", call).await.unwrap().into_inner(), n.to_string());
        }
    });
    futures_util::future::join_all(calls).await;
}
