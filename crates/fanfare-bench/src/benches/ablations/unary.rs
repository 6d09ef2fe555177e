//! One unary call per creation, in place of a stream of batches per node.

use std::convert::Infallible;
use std::future::{Ready as Now, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fanfare_link::{BlobError, BlobReader, Dialer, Hub, Link, LogRecord, Receiver, Sender};
use fanfare_types::{
    CodeDigest, Epoch, EpochGate, FromDataPlane, FromNode, FunctionId, NodeHello, Resources, RevisionId,
    SandboxId, Stages, ToDataPlane, ToNode,
};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{Context as Poller, Poll, Service, http};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::bench::Bench;
use crate::error::{Context, Error, Result};
use crate::procfs;
use crate::report::Report;

/// Where an emulated sandbox says that it is.
const ENDPOINT: &str = "unix:/run/fanfare/s/0000000000000001";
/// Longest that all answers may take.
const LIMIT: Duration = Duration::from_secs(120);
const PATH: &str = "/bench.Node/Create";

/// How orders get to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Stream,
    Unary,
}

const WAYS: [Way; 2] = [Way::Stream, Way::Unary];

#[derive(Debug, Default)]
struct Found {
    rates: Vec<f64>,
    cpu_us: Vec<f64>,
}

pub(super) fn run(bench: &mut Bench, report: &mut Report) -> Result<()> {
    let (nodes, orders) = bench.either((100, 20_000), (5, 200));
    report.say(format!(
        "Unary: {orders} creations are ordered of {nodes} nodes in turn, with so many under way, over TCP in one process; a \
         node answers at once that the sandbox is ready. Stream: each node's link as it is. Unary: a call per creation over one \
         connection per node, with the same fields in it and in its answer. CPU is that of both ends."
    ));
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start tokio")?;
    let streams = tokio.block_on(Streams::start(nodes))?;
    let calls = tokio.block_on(Calls::start(nodes))?;
    for under_way in [1, 64, 1_024] {
        let count = if under_way == 1 { orders / 20 } else { orders };
        let mut found = [Found::default(), Found::default()];
        for _ in 0..bench.rounds {
            for way in bench.shuffled(&WAYS) {
                let before = procfs::cpu_time(std::process::id())?;
                let elapsed = match way {
                    Way::Stream => tokio.block_on(streams.order(count, under_way))?,
                    Way::Unary => tokio.block_on(calls.order(count, under_way))?,
                };
                let cpu = procfs::cpu_time(std::process::id())?.saturating_sub(before);
                let of = &mut found[usize::from(way == Way::Unary)];
                of.rates.push(count as f64 / elapsed.as_secs_f64());
                of.cpu_us.push(cpu.as_secs_f64() * 1e6 / count as f64);
            }
        }
        tell(report, under_way, &found)?;
    }
    calls.stop.cancel();
    streams.stop.cancel();
    tokio.shutdown_timeout(LIMIT);
    Ok(())
}

fn tell(report: &mut Report, under_way: usize, [stream, unary]: &[Found; 2]) -> Result<()> {
    let group = format!("orders to nodes, {under_way} under way");
    for (name, found) in [("stream of batches", stream), ("unary calls", unary)] {
        report.measure(&group, format!("throughput, {name}"), "/s", &found.rates)?;
        report.measure(&group, format!("CPU per order, {name}"), "us", &found.cpu_us)?;
    }
    report.ratio(&group, "throughput, unary / stream", &unary.rates, &stream.rates)?;
    // The CPU clock counts in hundredths of a second, which a short round may not reach.
    if unary.cpu_us.iter().chain(&stream.cpu_us).all(|cpu| *cpu > 0.0) {
        report.ratio(&group, "CPU per order, unary / stream", &unary.cpu_us, &stream.cpu_us)?;
    }
    Ok(())
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// Nodes that have dialled a control plane.
struct Streams {
    nodes: Vec<Sender<ToNode>>,
    answers: Arc<Answers>,
    stop: CancellationToken,
}

/// What has been answered of the orders of one run.
#[derive(Debug)]
struct Answers {
    free: Semaphore,
    open: AtomicUsize,
    all: Notify,
}

impl Answers {
    fn one(&self) {
        self.free.add_permits(1);
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.all.notify_one();
        }
    }
}

struct Arrivals(mpsc::UnboundedSender<Link<ToNode, FromNode>>);

impl Hub for Arrivals {
    fn node(&self, link: Link<ToNode, FromNode>) {
        // Nobody waits any more: the node sees its link close.
        let _ = self.0.send(link);
    }

    fn data_plane(&self, _: Link<ToDataPlane, FromDataPlane>) {}

    fn blob(&self, digest: CodeDigest) -> BoxFuture<'static, std::result::Result<BlobReader, BlobError>> {
        Box::pin(async move { Err(BlobError::NotFound(digest)) })
    }

    fn logs(&self, _: u64, _: BoxStream<'static, LogRecord>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

impl Streams {
    async fn start(count: usize) -> Result<Streams> {
        let listener = TcpListener::bind(loopback()).await.context("listen")?;
        let address = listener.local_addr().context("listen")?;
        let (arrived, mut arrivals) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        tokio::spawn(async move {
            // What fails shows in links that close.
            let _ = fanfare_link::serve(listener, Arc::new(Arrivals(arrived)), stopped).await;
        });
        let dialer = Dialer::grpc(&format!("http://{address}")).context("dial")?;
        let answers =
            Arc::new(Answers { free: Semaphore::new(0), open: AtomicUsize::new(0), all: Notify::new() });
        let mut nodes = Vec::with_capacity(count);
        for _ in 0..count {
            let node = dialer.node(EpochGate::default()).await.context("dial")?;
            node.tx.send(FromNode::Hello(hello())).context("say hello")?;
            tokio::spawn(obey(node));
            let link = arrivals.recv().await.ok_or_else(|| Error::new("no node has come"))?;
            link.tx.set_epoch(Epoch(1));
            tokio::spawn(count_ready(link.rx, answers.clone()));
            nodes.push(link.tx);
        }
        Ok(Streams { nodes, answers, stop })
    }

    async fn order(&self, count: usize, under_way: usize) -> Result<Duration> {
        self.answers.open.store(count, Ordering::Release);
        self.answers.free.add_permits(under_way);
        let begun = Instant::now();
        let all = async {
            for n in 0..count {
                self.answers.free.acquire().await.context("a turn")?.forget();
                let revision = RevisionId { function: FunctionId(1), number: 1 };
                let create = ToNode::Create { sandbox: SandboxId(n as u64), revision, waited: true };
                self.nodes[n % self.nodes.len()].send(create).context("an order")?;
            }
            self.answers.all.notified().await;
            Ok::<_, Error>(())
        };
        tokio::time::timeout(LIMIT, all).await.context("the answers")??;
        let elapsed = begun.elapsed();
        self.answers.free.forget_permits(under_way);
        Ok(elapsed)
    }
}

fn hello() -> NodeHello {
    NodeHello {
        name: "node".into(),
        incarnation: 1,
        epoch_seen: Epoch::default(),
        capacity: Resources::new(1, 1),
        runtimes: Vec::new(),
        sandboxes: Vec::new(),
        logs: 0,
    }
}

/// A node: all that is ordered is ready at once.
async fn obey(mut node: Link<FromNode, ToNode>) {
    while let Some(batch) = node.rx.recv().await {
        for message in batch.messages {
            let ToNode::Create { sandbox, .. } = message else { continue };
            let ready = FromNode::Ready { sandbox, endpoint: ENDPOINT.into(), stages: Stages::default() };
            if node.tx.send(ready).is_err() {
                return;
            }
        }
    }
}

async fn count_ready(mut from: Receiver<FromNode>, answers: Arc<Answers>) {
    while let Some(batch) = from.recv().await {
        let ready = batch.messages.iter().filter(|message| matches!(message, FromNode::Ready { .. }));
        ready.for_each(|_| answers.one());
    }
}

/// Nodes that are called.
struct Calls {
    nodes: Vec<Channel>,
    stop: CancellationToken,
}

/// What [`ToNode::Create`] says.
#[derive(Clone, PartialEq, prost::Message)]
struct Create {
    #[prost(fixed64, tag = "1")]
    sandbox: u64,
    #[prost(uint32, tag = "2")]
    function: u32,
    #[prost(uint32, tag = "3")]
    number: u32,
    #[prost(bool, tag = "4")]
    waited: bool,
}

/// What [`FromNode::Ready`] says.
#[derive(Clone, PartialEq, prost::Message)]
struct Ready {
    #[prost(fixed64, tag = "1")]
    sandbox: u64,
    #[prost(uint64, repeated, tag = "2")]
    stages: Vec<u64>,
    #[prost(string, tag = "3")]
    endpoint: String,
}

impl Calls {
    async fn start(count: usize) -> Result<Calls> {
        let stop = CancellationToken::new();
        let mut nodes = Vec::with_capacity(count);
        for _ in 0..count {
            let listener = TcpListener::bind(loopback()).await.context("listen")?;
            let address = listener.local_addr().context("listen")?;
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            let server = Server::builder().add_service(NodeService);
            tokio::spawn(server.serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned()));
            let endpoint = Endpoint::from_shared(format!("http://{address}")).context("dial")?;
            nodes.push(endpoint.tcp_nodelay(true).connect().await.context("dial")?);
        }
        Ok(Calls { nodes, stop })
    }

    async fn order(&self, count: usize, under_way: usize) -> Result<Duration> {
        let free = Arc::new(Semaphore::new(under_way));
        let mut calls = JoinSet::new();
        let begun = Instant::now();
        let all = async {
            for n in 0..count {
                let turn = free.clone().acquire_owned().await.context("a turn")?;
                let mut client = tonic::client::Grpc::new(self.nodes[n % self.nodes.len()].clone());
                calls.spawn(async move {
                    let create = Create { sandbox: n as u64, function: 1, number: 1, waited: true };
                    let codec = ProstCodec::<Create, Ready>::default();
                    client.ready().await.context("a connection")?;
                    let path = PathAndQuery::from_static(PATH);
                    let answer = client.unary(Request::new(create), path, codec).await.context("an order")?;
                    drop(turn);
                    match answer.into_inner().sandbox == n as u64 {
                        true => Ok(()),
                        false => Err(Error::new("the answer to another order")),
                    }
                });
                while let Some(ended) = calls.try_join_next() {
                    ended.context("an order")??;
                }
            }
            while let Some(ended) = calls.join_next().await {
                ended.context("an order")??;
            }
            Ok::<_, Error>(())
        };
        tokio::time::timeout(LIMIT, all).await.context("the answers")??;
        Ok(begun.elapsed())
    }
}

/// A node's service.
#[derive(Clone, Copy, Debug)]
struct NodeService;

impl NamedService for NodeService {
    const NAME: &'static str = "bench.Node";
}

impl Service<http::Request<tonic::body::Body>> for NodeService {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, std::result::Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Poller<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<Ready, Create>::default());
            Ok(grpc.unary(NodeService, request).await)
        })
    }
}

impl UnaryService<Create> for NodeService {
    type Response = Ready;
    type Future = Now<std::result::Result<Response<Ready>, Status>>;

    fn call(&mut self, request: Request<Create>) -> Self::Future {
        let sandbox = request.into_inner().sandbox;
        ready(Ok(Response::new(Ready { sandbox, stages: vec![0; 6], endpoint: ENDPOINT.to_owned() })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_is_answered_on_either_way() {
        let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (streams, calls) =
            tokio.block_on(async { (Streams::start(3).await.unwrap(), Calls::start(3).await.unwrap()) });
        for (count, under_way) in [(1, 1), (50, 1), (50, 7), (5, 64)] {
            tokio.block_on(async {
                streams.order(count, under_way).await.unwrap();
                assert_eq!(streams.answers.open.load(Ordering::Acquire), 0);
                assert_eq!(streams.answers.free.available_permits(), 0);
                calls.order(count, under_way).await.unwrap();
            });
        }
        calls.stop.cancel();
        streams.stop.cancel();
    }
}
