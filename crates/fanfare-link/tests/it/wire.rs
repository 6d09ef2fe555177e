//! What only a network can do to a link.

use std::time::Instant;

use fanfare_link::{DialError, Dialer, EpochGate};
use fanfare_types::limits::LIVENESS_TIMEOUT;
use fanfare_types::{FromNode, SandboxId, StopMode, ToNode};
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tonic::codegen::http::uri::PathAndQuery;
use tonic_prost::ProstCodec;

use crate::rig::{Rig, within};

/// Forwards one connection until `cut`; then holds both sides open and silent, as a dead machine does.
async fn black_hole(to: std::net::SocketAddr, mut cut: watch::Receiver<bool>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let server = TcpStream::connect(to).await.unwrap();
        let (mut client_read, mut client_write) = client.into_split();
        let (mut server_read, mut server_write) = server.into_split();
        tokio::select! {
            _ = copy(&mut client_read, &mut server_write) => return,
            _ = copy(&mut server_read, &mut client_write) => return,
            _ = cut.wait_for(|cut| *cut) => {}
        }
        // Until the test ends.
        std::future::pending::<()>().await;
    });
    address
}

#[tokio::test]
async fn a_silent_peer_is_found_within_the_liveness_timeout() {
    let rig = Rig::grpc().await;
    let (cut, cutting) = watch::channel(false);
    let proxy = black_hole(rig.server.as_ref().unwrap().address, cutting).await;
    let dialer = Dialer::grpc(&format!("http://{proxy}")).unwrap();
    let mut node = within("dialling", dialer.node(EpochGate::default())).await.unwrap();
    let mut hub = within("the hub's end", rig.hub.next_node()).await;
    node.tx.send(FromNode::Heartbeat).unwrap();
    assert!(within("a batch", hub.rx.recv()).await.is_some());
    cut.send(true).unwrap();
    let start = Instant::now();
    let (node_end, hub_end) =
        within("both ends", async { tokio::join!(node.rx.recv(), hub.rx.recv()) }).await;
    assert!(node_end.is_none() && hub_end.is_none());
    assert!(start.elapsed() < 10 * LIVENESS_TIMEOUT, "{:?}", start.elapsed());
    assert!(node.tx.is_closed() && hub.tx.is_closed());
}

#[tokio::test]
async fn an_idle_link_outlives_the_liveness_timeout() {
    let rig = Rig::grpc().await;
    let (mut node, hub) = rig.node().await;
    let silence = tokio::time::timeout(2 * LIVENESS_TIMEOUT, node.rx.recv()).await;
    assert!(silence.is_err(), "an idle link was closed");
    hub.tx.send(ToNode::Stop { sandbox: SandboxId(1), mode: StopMode::Kill }).unwrap();
    assert!(within("a batch", node.rx.recv()).await.is_some());
}

/// Any frame at all: epoch, sequence number, and runs as raw bytes.
#[derive(Clone, PartialEq, prost::Message)]
struct RawFrame {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    #[prost(uint64, tag = "2")]
    seq: u64,
    #[prost(bytes = "vec", repeated, tag = "3")]
    runs: Vec<Vec<u8>>,
}

/// A node's run that is a heartbeat: field 7, empty.
const HEARTBEAT: &[u8] = &[7 << 3 | 2, 0];

#[tokio::test]
async fn malformed_frames_close_the_link() {
    let heartbeat = |seq| RawFrame { epoch: 0, seq, runs: vec![HEARTBEAT.to_vec()] };
    let run = |bytes: &[u8]| RawFrame { epoch: 0, seq: 2, runs: vec![bytes.to_vec()] };
    let cases = [
        ("no message", RawFrame { epoch: 0, seq: 2, runs: Vec::new() }),
        ("an unknown message", run(&[100 << 1, 0])),
        ("a truncated record", run(&[2 << 3 | 2, 3, 1, 2, 3])),
        ("not protobuf", run(&[0xff; 20])),
        ("a gap", heartbeat(3)),
        ("a repetition", heartbeat(1)),
    ];
    for (what, frame) in cases {
        let rig = Rig::grpc().await;
        let address = rig.server.as_ref().unwrap().address;
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut client = tonic::client::Grpc::new(channel.connect().await.unwrap());
        client.ready().await.unwrap();
        let frames = stream::iter([heartbeat(1), frame]).chain(stream::pending());
        let path = PathAndQuery::from_static("/fanfare.internal.v1.Internal/Node");
        let codec = ProstCodec::<RawFrame, RawFrame>::default();
        let mut answer =
            client.streaming(tonic::Request::new(frames), path, codec).await.unwrap().into_inner();
        let mut hub = within("the hub's end", rig.hub.next_node()).await;
        assert_eq!(within(what, hub.rx.recv()).await.unwrap().messages, [FromNode::Heartbeat], "{what}");
        assert!(within(what, hub.rx.recv()).await.is_none(), "{what}");
        assert!(hub.tx.is_closed(), "{what}");
        // The sender of the nonsense is told by the end of its stream.
        assert!(!matches!(within(what, answer.message()).await, Ok(Some(_))), "{what}");
    }
}

#[tokio::test]
async fn dialling_ends_with_a_reason() {
    for address in ["", "nowhere", "https://host:1", "http://host", "/a/path", "http://:80"] {
        assert!(matches!(Dialer::grpc(address), Err(DialError::Address(_))), "{address:?}");
    }
    // Nobody listens.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let dialer = Dialer::grpc(&format!("http://{address}")).unwrap();
    let refused = within("dialling", dialer.node(EpochGate::default())).await.unwrap_err();
    assert!(matches!(refused, DialError::Unreachable(_)), "{refused}");

    // Somebody listens and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dialer = Dialer::grpc(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let start = Instant::now();
    let silent = within("dialling", dialer.node(EpochGate::default())).await.unwrap_err();
    assert!(matches!(silent, DialError::Unreachable(_)), "{silent}");
    assert!(start.elapsed() < 10 * LIVENESS_TIMEOUT);

    // Somebody speaks another language.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dialer = Dialer::grpc(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    tokio::spawn(async move {
        let (mut io, _) = listener.accept().await.unwrap();
        io.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        let mut rest = Vec::new();
        let _ = io.read_to_end(&mut rest).await;
    });
    let other = within("dialling", dialer.node(EpochGate::default())).await.unwrap_err();
    assert!(matches!(other, DialError::Unreachable(_) | DialError::Refused(_)), "{other}");
}

#[tokio::test]
async fn nonsense_on_one_connection_harms_no_other() {
    let rig = Rig::grpc().await;
    let (mut node, mut hub) = rig.node().await;
    let mut io = TcpStream::connect(rig.server.as_ref().unwrap().address).await.unwrap();
    io.write_all(&[0x42; 100_000]).await.ok();
    let mut rest = Vec::new();
    let _ = within("the end of the nonsense", io.read_to_end(&mut rest)).await;
    node.tx.send(FromNode::Heartbeat).unwrap();
    assert!(within("a batch", hub.rx.recv()).await.is_some());
    hub.tx.send(ToNode::Stop { sandbox: SandboxId(1), mode: StopMode::Kill }).unwrap();
    assert!(within("a batch", node.rx.recv()).await.is_some());
}

#[tokio::test]
async fn shutting_down_cuts_every_link() {
    let rig = Rig::grpc().await;
    let (mut node, mut hub) = rig.node().await;
    let server = rig.server.unwrap();
    server.stop.send(()).unwrap();
    within("serving", server.task).await.unwrap().unwrap();
    assert!(within("the node's end", node.rx.recv()).await.is_none());
    assert!(within("the hub's end", hub.rx.recv()).await.is_none());
    assert!(TcpStream::connect(server.address).await.is_err(), "still listening");
}
