//! What holds for every link, whatever carries it.

use std::sync::Arc;

use bytes::Bytes;
use fanfare_link::{Batch, BlobError, LogRecord, LogStream, Message, Receiver, SendError};
use fanfare_types::limits::{LINK_BATCH_BYTES_MAX, LINK_BATCH_MESSAGES_MAX, LINK_QUEUE_MESSAGES_MAX};
use fanfare_types::{
    Balance, CodeDigest, Epoch, ExitCause, FromDataPlane, FromNode, FunctionId, FunctionLoad, FunctionName,
    FunctionRoute, GoneCause, NodeId, SandboxId, SandboxUsage, StopMode, ToDataPlane, ToNode,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::rig::{Rig, within};

macro_rules! on_both_transports {
    ($($name:ident)*) => {
        mod in_process {
            $(#[tokio::test] async fn $name() { super::$name(super::Rig::in_process().await).await })*
        }
        mod grpc {
            $(#[tokio::test] async fn $name() { super::$name(super::Rig::grpc().await).await })*
        }
    };
}

on_both_transports! {
    messages_arrive_in_order_both_ways
    a_backlog_travels_in_few_batches
    overflow_closes_the_link
    a_peer_that_stops_reading_overflows_the_link
    a_deposed_leader_is_refused_on_every_link
    the_dialler_states_the_newest_epoch
    a_change_of_epoch_cuts_a_batch
    dropping_any_half_closes_both_ends
    finish_delivers_what_waits
    batches_are_bounded_in_bytes
    long_lists_are_split
    what_cannot_be_split_is_refused
    blobs_stream
    log_lines_stream_until_either_side_ends
}

fn stop(n: u64) -> ToNode {
    ToNode::Stop { sandbox: SandboxId(n), mode: StopMode::Graceful }
}

fn exited(n: u64, log_tail: &str) -> FromNode {
    let cause = GoneCause { exit: ExitCause::Status(0), log_tail: log_tail.into() };
    FromNode::Exited { sandbox: SandboxId(n), cause }
}

async fn recv<M: Message>(rx: &mut Receiver<M>) -> Option<Batch<M>> {
    within("a batch", rx.recv()).await
}

/// Receives `count` messages and the batches they came in.
async fn collect<M: Message>(rx: &mut Receiver<M>, count: usize) -> (Vec<M>, usize) {
    let mut messages = Vec::new();
    let mut batches = 0;
    while messages.len() < count {
        let batch = recv(rx).await.expect("the link is open");
        assert!((1..=LINK_BATCH_MESSAGES_MAX).contains(&batch.messages.len()));
        messages.extend(batch.messages);
        batches += 1;
    }
    (messages, batches)
}

async fn messages_arrive_in_order_both_ways(rig: Rig) {
    let (mut node, mut hub) = rig.node().await;
    for round in 0..20 {
        for n in round * 100..(round + 1) * 100 {
            node.tx.send(exited(n, "bye")).unwrap();
            hub.tx.send(stop(n)).unwrap();
        }
        tokio::task::yield_now().await;
    }
    let (up, _) = collect(&mut hub.rx, 2_000).await;
    let (down, _) = collect(&mut node.rx, 2_000).await;
    assert_eq!(up, (0..2_000).map(|n| exited(n, "bye")).collect::<Vec<_>>());
    assert_eq!(down, (0..2_000).map(stop).collect::<Vec<_>>());
}

async fn a_backlog_travels_in_few_batches(rig: Rig) {
    let (mut node, hub) = rig.node().await;
    let count = 5 * LINK_BATCH_MESSAGES_MAX;
    for n in 0..count {
        hub.tx.send(stop(n as u64)).unwrap();
    }
    let (messages, batches) = collect(&mut node.rx, count).await;
    assert_eq!(messages, (0..count as u64).map(stop).collect::<Vec<_>>());
    assert_eq!(batches, 5);
}

async fn overflow_closes_the_link(rig: Rig) {
    let (mut node, mut hub) = rig.node().await;
    for n in 0..LINK_QUEUE_MESSAGES_MAX {
        hub.tx.send(stop(n as u64)).unwrap();
    }
    assert_eq!(hub.tx.send(stop(0)), Err(SendError::Overflow));
    assert_eq!(hub.tx.send(stop(0)), Err(SendError::Closed));
    assert!(recv(&mut hub.rx).await.is_none());
    drop(hub);
    while recv(&mut node.rx).await.is_some() {}
    within("the node's half", node.tx.closed()).await;
}

async fn a_peer_that_stops_reading_overflows_the_link(rig: Rig) {
    let (node, mut hub) = rig.node().await;
    let tail = "x".repeat(4_000);
    let overflow = async {
        loop {
            if let Err(error) = node.tx.send(exited(1, &tail)) {
                return error;
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(within("the overflow", overflow).await, SendError::Overflow);
    // The peer learns of it though it read nothing so far: its half closes, and what is left to read ends.
    within("the hub's half", hub.tx.closed()).await;
    while recv(&mut hub.rx).await.is_some() {}
}

async fn a_deposed_leader_is_refused_on_every_link(rig: Rig) {
    let (mut one, mut old_leader) = rig.node().await;
    old_leader.tx.set_epoch(Epoch(3));
    old_leader.tx.send(ToNode::Welcome { you: NodeId(1), epoch: Epoch(3) }).unwrap();
    assert_eq!(recv(&mut one.rx).await.unwrap().epoch, Epoch(3));

    let (mut two, new_leader) = rig.node().await;
    new_leader.tx.set_epoch(Epoch(4));
    new_leader.tx.send(ToNode::Welcome { you: NodeId(1), epoch: Epoch(4) }).unwrap();
    assert_eq!(recv(&mut two.rx).await.unwrap().epoch, Epoch(4));

    let _ = old_leader.tx.send(stop(7));
    assert!(recv(&mut one.rx).await.is_none(), "a command of the deposed leader came through");
    assert!(one.tx.is_closed());
    while recv(&mut old_leader.rx).await.is_some() {}
    new_leader.tx.send(stop(8)).unwrap();
    assert_eq!(recv(&mut two.rx).await.unwrap().messages, [stop(8)]);
}

async fn the_dialler_states_the_newest_epoch(rig: Rig) {
    let (node, mut hub) = rig.node().await;
    node.tx.send(FromNode::Heartbeat).unwrap();
    rig.gate.admit(Epoch(9));
    node.tx.send(FromNode::Heartbeat).unwrap();
    assert_eq!(recv(&mut hub.rx).await.unwrap().epoch, Epoch(0));
    assert_eq!(recv(&mut hub.rx).await.unwrap().epoch, Epoch(9));
}

async fn a_change_of_epoch_cuts_a_batch(rig: Rig) {
    let (mut node, hub) = rig.node().await;
    hub.tx.send(stop(1)).unwrap();
    hub.tx.send(stop(2)).unwrap();
    hub.tx.set_epoch(Epoch(2));
    hub.tx.send(stop(3)).unwrap();
    let first = recv(&mut node.rx).await.unwrap();
    assert_eq!(first, Batch { epoch: Epoch(0), seq: 1, messages: vec![stop(1), stop(2)] });
    let second = recv(&mut node.rx).await.unwrap();
    assert_eq!(second, Batch { epoch: Epoch(2), seq: 2, messages: vec![stop(3)] });
}

async fn dropping_any_half_closes_both_ends(rig: Rig) {
    type Cut = fn(fanfare_link::Link<FromNode, ToNode>, &mut Vec<Box<dyn std::any::Any>>);
    let cuts: [(&str, Cut); 4] = [
        ("the link", |link, _| drop(link)),
        ("the sender", |link, keep| keep.push(Box::new(link.rx))),
        ("the receiver", |link, keep| keep.push(Box::new(link.tx))),
        ("close", |link, keep| {
            link.tx.close();
            keep.push(Box::new(link));
        }),
    ];
    for (what, cut) in cuts {
        let (node, mut hub) = rig.node().await;
        let mut keep = Vec::new();
        cut(node, &mut keep);
        assert!(recv(&mut hub.rx).await.is_none(), "{what}");
        within("the hub's sender", hub.tx.closed()).await;
        assert_eq!(hub.tx.send(stop(1)), Err(SendError::Closed), "{what}");
    }
    // And from the other end.
    let (mut node, hub) = rig.node().await;
    let clone = node.tx.clone();
    drop(hub.tx);
    assert!(recv(&mut node.rx).await.is_none());
    assert_eq!(clone.send(FromNode::Heartbeat), Err(SendError::Closed));
}

async fn finish_delivers_what_waits(rig: Rig) {
    let (node, mut hub) = rig.node().await;
    let count = 3 * LINK_BATCH_MESSAGES_MAX as u64;
    for n in 0..count {
        node.tx.send(exited(n, "")).unwrap();
    }
    let finish = tokio::spawn(node.finish());
    let (messages, _) = collect(&mut hub.rx, count as usize).await;
    assert_eq!(messages, (0..count).map(|n| exited(n, "")).collect::<Vec<_>>());
    assert!(recv(&mut hub.rx).await.is_none());
    within("finish", finish).await.unwrap();

    let (mut node, hub) = rig.node().await;
    hub.tx.send(stop(1)).unwrap();
    let finish = tokio::spawn(hub.finish());
    assert_eq!(recv(&mut node.rx).await.unwrap().messages, [stop(1)]);
    assert!(recv(&mut node.rx).await.is_none());
    within("finish", finish).await.unwrap();
}

async fn batches_are_bounded_in_bytes(rig: Rig) {
    let (node, mut hub) = rig.node().await;
    let usage = |n| SandboxUsage { sandbox: SandboxId(n), cpu_milli: n as f64 };
    let large = FromNode::Usage((0..100_000).map(usage).collect());
    assert!(3 * large.weight_bytes() > LINK_BATCH_BYTES_MAX);
    for _ in 0..7 {
        node.tx.send(large.clone()).unwrap();
    }
    let mut messages = Vec::new();
    while messages.len() < 7 {
        let batch = recv(&mut hub.rx).await.unwrap();
        let weight: usize = batch.messages.iter().map(Message::weight_bytes).sum();
        assert!(weight <= LINK_BATCH_BYTES_MAX);
        messages.extend(batch.messages);
    }
    assert!(messages.iter().all(|message| *message == large));
}

async fn long_lists_are_split(rig: Rig) {
    let (mut data_plane, hub) = rig.data_plane().await;
    let route = |n| FunctionRoute {
        id: FunctionId(n),
        revision: 1,
        name: FunctionName::new(&format!("function-{n}")).unwrap(),
        concurrency: 1,
        request_timeout: std::time::Duration::from_secs(1),
        idle_timeout: None,
        queue_limit: 10,
        balance: Balance::Knative,
        reach: Default::default(),
    };
    let all: Vec<_> = (0..300_000).map(route).collect();
    hub.tx.send(ToDataPlane::Functions(all.clone())).unwrap();
    hub.tx.send(ToDataPlane::Synced).unwrap();
    let mut functions = Vec::new();
    'synced: loop {
        for message in recv(&mut data_plane.rx).await.unwrap().messages {
            match message {
                ToDataPlane::Functions(list) => functions.extend(list),
                ToDataPlane::Synced => break 'synced,
                other => panic!("unexpected {other:?}"),
            }
        }
    }
    assert!(functions == all, "functions were lost or reordered");
}

async fn what_cannot_be_split_is_refused(rig: Rig) {
    let (data_plane, mut hub) = rig.data_plane().await;
    let report = FromDataPlane::Report(vec![FunctionLoad::default(); 300_000]);
    assert!(report.weight_bytes() > LINK_BATCH_BYTES_MAX);
    assert_eq!(data_plane.tx.send(report), Err(SendError::TooLarge));
    assert_eq!(data_plane.tx.send(FromDataPlane::Heartbeat), Err(SendError::Closed));
    assert!(recv(&mut hub.rx).await.is_none());
}

async fn blobs_stream(rig: Rig) {
    let bytes = |n: usize| Bytes::from((0..n).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    let sizes = [1, 0, 300_000, 5 << 20, 17];
    let good = CodeDigest([1; 32]);
    let bad = CodeDigest([2; 32]);
    let broken = BlobError::Unavailable("disk on fire".into());
    {
        let mut blobs = rig.hub.blobs.lock().unwrap();
        blobs.insert(good, sizes.iter().map(|n| Ok(bytes(*n))).collect());
        blobs.insert(bad, vec![Ok(bytes(10)), Err(broken)]);
    }
    let reader = within("opening", rig.dialer.fetch_blob(good)).await.unwrap();
    let chunks: Vec<Bytes> = within("reading", reader.try_collect()).await.unwrap();
    assert_eq!(chunks.concat(), sizes.iter().map(|n| bytes(*n)).collect::<Vec<_>>().concat());

    let mut reader = within("opening", rig.dialer.fetch_blob(bad)).await.unwrap();
    assert_eq!(within("reading", reader.next()).await.unwrap().unwrap(), bytes(10));
    let error = within("reading", reader.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("disk on fire"), "{error}");

    let unknown = CodeDigest([3; 32]);
    let missing = within("opening", rig.dialer.fetch_blob(unknown)).await.map(|_| ());
    assert_eq!(missing.unwrap_err(), BlobError::NotFound(unknown));
}

async fn log_lines_stream_until_either_side_ends(rig: Rig) {
    let line = |seq| LogRecord {
        seq,
        time_unix_ms: 1_700_000_000_000 + seq,
        sandbox: (seq % 2 == 0).then_some(SandboxId(seq)),
        stream: LogStream::Stderr,
        text: format!("line {seq}"),
    };
    // The lines end.
    let dialer = rig.dialer.clone();
    let push =
        tokio::spawn(async move { dialer.push_logs(7, stream::iter((0..1_000).map(line)).boxed()).await });
    let (transfer, lines, end) = within("the transfer", rig.hub.logs.lock().await.recv()).await.unwrap();
    assert_eq!(transfer, 7);
    let received: Vec<_> = within("the lines", lines.collect()).await;
    assert_eq!(received, (0..1_000).map(line).collect::<Vec<_>>());
    end.send(()).unwrap();
    within("the push", push).await.unwrap().unwrap();

    // The reader has had enough, though the writer would go on for ever.
    let (writer, written) = tokio::sync::mpsc::channel(8);
    let dialer = rig.dialer.clone();
    let lines = tokio_stream::wrappers::ReceiverStream::new(written);
    let push = tokio::spawn(async move { dialer.push_logs(8, lines.boxed()).await });
    let (transfer, mut lines, end) = within("the transfer", rig.hub.logs.lock().await.recv()).await.unwrap();
    assert_eq!(transfer, 8);
    writer.send(line(1)).await.unwrap();
    assert_eq!(within("a line", lines.next()).await, Some(line(1)));
    end.send(()).unwrap();
    drop(lines);
    within("the push", push).await.unwrap().unwrap();
    within("the writer's end", writer.closed()).await;
    let _: Arc<_> = rig.hub;
}
