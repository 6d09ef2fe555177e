//! Lines of one function from several nodes.

use fanfare_link::{LogRecord, LogStream};
use fanfare_types::{SandboxId, ToNode};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http_body_util::{BodyExt, Full};
use serde_json::Value;

use crate::peers::{node, node_hello, obedient};
use crate::world::{World, soon};

fn record(seq: u64, time_unix_ms: u64, text: &str) -> LogRecord {
    LogRecord {
        seq,
        time_unix_ms,
        sandbox: Some(SandboxId(7)),
        stream: LogStream::Stdout,
        text: text.to_owned(),
    }
}

fn odd() -> BoxStream<'static, LogRecord> {
    stream::iter((0..5).map(|i| record(i + 1, 2 * i + 1, &format!("line {}", 2 * i + 1)))).boxed()
}

fn even() -> BoxStream<'static, LogRecord> {
    stream::iter((0..5).map(|i| record(i + 1, 2 * i + 2, &format!("line {}", 2 * i + 2)))).boxed()
}

fn lines(body: &[u8]) -> Vec<Value> {
    body.split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect()
}

#[tokio::test]
async fn the_last_lines_of_all_nodes_are_merged_by_time() {
    let world = World::new().await;
    let dialer = world.dialer();
    world.api.create("hello").await;
    let empty = world.api.call("GET", "/v1/functions/hello/logs").await;
    assert_eq!((empty.status.as_u16(), empty.body.len()), (200, 0), "no node, no line");
    for (name, written) in [("a", odd as fn() -> _), ("b", even as fn() -> _)] {
        let mut node = node(&dialer, node_hello(name, 1, vec![])).await;
        node.until(|message| matches!(message, ToNode::Welcome { .. }).then_some(())).await;
        tokio::spawn(obedient(node, dialer.clone(), written));
    }
    let answer = world.api.call("GET", "/v1/functions/hello/logs?tail=7").await;
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    let found = lines(&answer.body);
    let texts: Vec<_> = found.iter().map(|line| line["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(texts, (4..=10).map(|i| format!("line {i}")).collect::<Vec<_>>());
    assert_eq!(
        (&found[0]["node"], &found[1]["node"], &found[0]["sandbox"]),
        (&"b".into(), &"a".into(), &"s7".into())
    );
    assert_eq!((&found[0]["stream"], &found[0]["seq"]), (&"stdout".into(), &2.into()));
    world.stop().await;
}

#[tokio::test]
async fn a_follower_gets_each_line_once_over_reconnects_and_hears_of_gaps() {
    let world = World::new().await;
    let dialer = world.dialer();
    world.api.create("hello").await;
    let mut first = node(&dialer, node_hello("a", 1, vec![])).await;
    first.until(|message| matches!(message, ToNode::Welcome { .. }).then_some(())).await;
    let request = world.api.request("GET", "/v1/functions/hello/logs?tail=2&follow=true");
    let mut body = world.api.open(request.body(Full::default()).unwrap()).await.into_body();

    let wanted = |message: &ToNode| match message {
        ToNode::Logs { transfer, tail_lines, follow, .. } => Some((*transfer, *tail_lines, *follow)),
        _ => None,
    };
    let (transfer, tail_lines, follow) = first.until(wanted).await;
    assert_eq!((tail_lines, follow), (2, false));
    dialer
        .push_logs(transfer, stream::iter([record(8, 1, "eight"), record(9, 2, "nine")]).boxed())
        .await
        .unwrap();
    let (transfer, _, follow) = first.until(wanted).await;
    assert!(follow);
    // It repeats a line, goes on, and breaks off.
    let repeated = [record(9, 2, "nine"), record(10, 3, "ten")];
    soon(dialer.push_logs(transfer, stream::iter(repeated).boxed())).await.unwrap();
    let (transfer, _, _) = first.until(wanted).await;
    let with_gap = [record(10, 3, "ten"), record(14, 4, "fourteen")];
    let pushing = dialer.push_logs(transfer, stream::iter(with_gap).chain(stream::pending()).boxed());
    tokio::pin!(pushing);

    let mut text = Vec::new();
    while lines_so_far(&text) < 5 {
        tokio::select! {
            frame = soon(body.frame()) => text.extend_from_slice(&frame.unwrap().unwrap().into_data().unwrap()),
            _ = &mut pushing => panic!("the transfer ended while its reader is there"),
        }
    }
    let found = lines(&text);
    let texts: Vec<_> = found.iter().map(|line| line["text"].as_str().unwrap()).collect();
    assert_eq!(texts[..3], ["eight", "nine", "ten"]);
    assert!(texts[3].starts_with("3 lines are missing") && found[3]["stream"] == "platform", "{texts:?}");
    assert_eq!(texts[4], "fourteen");
    // The reader leaves: the node is told so by the end of its transfer.
    drop(body);
    soon(pushing).await.unwrap();
    world.stop().await;
}

fn lines_so_far(text: &[u8]) -> usize {
    text.iter().filter(|b| **b == b'\n').count()
}

/// Neither does one wait for ever for a function that is no more, nor is it given the lines of the next one of that name.
#[tokio::test]
async fn a_follower_of_a_deleted_function_is_told_and_ends() {
    for again in [false, true] {
        let world = World::new().await;
        world.api.create("hello").await;
        let request = world.api.request("GET", "/v1/functions/hello/logs?follow=true");
        let body = world.api.open(request.body(Full::default()).unwrap()).await.into_body();
        assert_eq!(world.api.call("DELETE", "/v1/functions/hello").await.status.as_u16(), 204);
        if again {
            world.api.create("hello").await;
        }
        let text = soon(body.collect()).await.unwrap().to_bytes();
        let told: Vec<_> =
            lines(&text).iter().map(|line| (line["stream"].clone(), line["text"].clone())).collect();
        assert_eq!(told, [("platform".into(), "hello was deleted".into())], "{again}");
        world.stop().await;
    }
}

#[tokio::test]
async fn a_follower_does_not_hold_up_the_end() {
    let world = World::new().await;
    world.api.create("hello").await;
    let request = world.api.request("GET", "/v1/functions/hello/logs?follow=true");
    let body = world.api.open(request.body(Full::default()).unwrap()).await.into_body();
    world.stop().await;
    assert_eq!(soon(body.collect()).await.unwrap().to_bytes().len(), 0);
}
