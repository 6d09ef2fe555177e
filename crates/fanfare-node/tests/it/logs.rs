//! Log lines on their way to whoever asks.

use fanfare_link::LogStream;
use fanfare_sandbox::LogLine;
use fanfare_types::{FunctionId, SandboxId, ToNode};
use futures_util::StreamExt;

use crate::rig::{Rig, Setup, within};

fn line(text: &str) -> LogLine {
    LogLine {
        function: FunctionId(5),
        sandbox: Some(SandboxId(1)),
        stream: fanfare_sandbox::LogStream::Stderr,
        text: text.into(),
    }
}

#[tokio::test]
async fn a_tail_ends_and_a_follower_goes_on_until_the_receiver_closes() {
    let mut rig = Rig::start(Setup::default()).await;
    let leader = rig.ready_link().await;
    for text in ["one", "two", "three"] {
        (rig.outlets.logs)(line(text));
    }
    rig.node.logs().flush().await;
    let ask = |transfer, follow| ToNode::Logs {
        transfer,
        function: FunctionId(5),
        tail_lines: 2,
        follow,
        select: Default::default(),
    };

    leader.tell(ask(1, false));
    let (transfer, lines, _end) = within("the transfer", rig.logs.recv()).await.unwrap();
    let lines: Vec<_> = within("the lines", lines.collect()).await;
    assert_eq!(transfer, 1);
    let told: Vec<_> = lines.iter().map(|record| (record.seq, &record.text[..])).collect();
    assert_eq!(told, [(2, "two"), (3, "three")]);
    assert_eq!((lines[0].sandbox, lines[0].stream), (Some(SandboxId(1)), LogStream::Stderr));

    leader.tell(ask(2, true));
    let (_, mut lines, end) = within("the transfer", rig.logs.recv()).await.unwrap();
    for text in ["two", "three"] {
        assert_eq!(within("a line", lines.next()).await.unwrap().text, text);
    }
    (rig.outlets.logs)(line("four"));
    assert_eq!(within("a line", lines.next()).await.unwrap().text, "four");
    drop(lines);
    end.send(()).unwrap();
}

#[tokio::test]
async fn readers_beyond_the_limit_are_told_so() {
    let mut rig = Rig::start(Setup::default()).await;
    let leader = rig.ready_link().await;
    let mut open = Vec::new();
    loop {
        let transfer = open.len() as u64;
        leader.tell(ToNode::Logs {
            transfer,
            function: FunctionId(5),
            tail_lines: 0,
            follow: true,
            select: Default::default(),
        });
        let (_, mut lines, end) = within("the transfer", rig.logs.recv()).await.unwrap();
        if transfer == 64 {
            let refusal = within("the refusal", lines.next()).await.unwrap();
            assert_eq!(refusal.stream, LogStream::Platform);
            assert!(refusal.text.contains("64"), "{}", refusal.text);
            assert!(within("the end", lines.next()).await.is_none());
            return;
        }
        open.push((lines, end));
    }
}
