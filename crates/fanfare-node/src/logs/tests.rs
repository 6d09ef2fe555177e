use super::*;

use std::time::Duration;

use fanfare_sandbox::LogLine;
use fanfare_types::SandboxId;
use futures_util::{FutureExt, StreamExt};

const F: FunctionId = FunctionId(7);

fn line(text: impl Into<String>) -> LogLine {
    LogLine {
        function: F,
        sandbox: Some(SandboxId(3)),
        stream: fanfare_sandbox::LogStream::Stdout,
        text: text.into(),
    }
}

fn wanted(tail_lines: u32, follow: bool) -> Wanted {
    Wanted { tail_lines, follow, ..Wanted::default() }
}

fn limits(function_bytes: u64) -> LogLimits {
    LogLimits { function_bytes, ..LogLimits::default() }
}

async fn texts(store: &LogStore, tail: u32) -> Vec<String> {
    store.read(F, wanted(tail, false)).map(|record| record.text).collect().await
}

#[tokio::test]
async fn the_tail_is_the_last_lines_with_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let store = LogStore::open(dir.path().join("logs"), limits(1 << 20)).unwrap();
    assert!(texts(&store, 10).await.is_empty());
    let sink = store.sink();
    for n in 0..5_000 {
        sink(line(format!("line {n}")));
    }
    store.flush().await;
    for tail in [0, 1, 10, 4_999, 5_000, 9_999] {
        let records: Vec<_> = store.read(F, wanted(tail, false)).collect().await;
        let first = 5_000_u32.saturating_sub(tail);
        assert_eq!(records.len() as u32, 5_000 - first);
        for (record, n) in records.iter().zip(first..) {
            assert_eq!((record.seq, &record.text), (u64::from(n) + 1, &format!("line {n}")));
            assert_eq!((record.sandbox, record.stream), (Some(SandboxId(3)), LogStream::Stdout));
            assert!(record.time_unix_ms > 0);
        }
    }
}

#[tokio::test]
async fn the_ring_stays_within_its_limit_and_keeps_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let limit = 64 * 1024;
    let store = LogStore::open(dir.path().join("logs"), limits(limit)).unwrap();
    let sink = store.sink();
    for n in 0..10_000 {
        sink(line(format!("line {n:05} {}", "x".repeat(80))));
        if n % 500 == 0 {
            store.flush().await;
        }
    }
    store.flush().await;
    let on_disk: u64 = std::fs::read_dir(dir.path().join("logs/7"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(on_disk <= limit && on_disk >= limit / 2, "{on_disk}");
    let records: Vec<_> = store.read(F, wanted(u32::MAX, false)).collect().await;
    assert!(records.len() > 200);
    assert_eq!(records.last().unwrap().seq, 10_000);
    assert!(records.windows(2).all(|pair| pair[0].seq + 1 == pair[1].seq));
}

#[tokio::test]
async fn followers_get_each_line_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = LogStore::open(dir.path().join("logs"), limits(8 << 20)).unwrap();
    let sink = store.sink();
    for n in 0..10 {
        sink(line(n.to_string()));
    }
    store.flush().await;
    let mut reader = store.read(F, wanted(3, true));
    for n in 7..10 {
        assert_eq!(reader.next().await.unwrap().text, n.to_string());
    }
    assert!(reader.next().now_or_never().is_none(), "nothing more was written");
    let write = tokio::spawn(async move {
        for n in 10..20_000 {
            sink(line(n.to_string()));
            if n % 100 == 0 {
                tokio::task::yield_now().await;
            }
        }
    });
    for n in 10..20_000 {
        let record = tokio::time::timeout(Duration::from_secs(20), reader.next()).await.unwrap().unwrap();
        assert_eq!(record.text, n.to_string());
    }
    write.await.unwrap();
}

#[tokio::test]
async fn a_reader_that_is_overtaken_goes_on_with_the_oldest_line() {
    let dir = tempfile::tempdir().unwrap();
    let store = LogStore::open(dir.path().join("logs"), limits(16 * 1024)).unwrap();
    let sink = store.sink();
    sink(line("first"));
    store.flush().await;
    let mut reader = store.read(F, wanted(10, true));
    assert_eq!(reader.next().await.unwrap().seq, 1);
    for n in 0..2_000 {
        sink(line(format!("line {n}")));
    }
    store.flush().await;
    let next = reader.next().await.unwrap();
    assert!(next.seq > 2, "{}", next.seq);
    let mut last = next.seq;
    while last < 2_001 {
        let record = reader.next().await.unwrap();
        assert_eq!(record.seq, last + 1);
        last = record.seq;
    }
}

#[tokio::test]
async fn logs_outlive_the_process_and_half_a_line_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("logs");
    {
        let store = LogStore::open(path.clone(), limits(1 << 20)).unwrap();
        let sink = store.sink();
        for n in 0..100 {
            sink(line(n.to_string()));
        }
        store.flush().await;
    }
    let segment = std::fs::read_dir(path.join("7")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes.extend_from_within(..20);
    std::fs::write(&segment, bytes).unwrap();

    let store = LogStore::open(path, limits(1 << 20)).unwrap();
    store.sink()(line("after"));
    store.flush().await;
    let records: Vec<_> = store.read(F, wanted(2, false)).collect().await;
    assert_eq!((records[0].seq, &records[0].text[..]), (100, "99"));
    assert_eq!((records[1].seq, &records[1].text[..]), (101, "after"));
}

#[tokio::test]
async fn what_does_not_fit_the_queue_is_counted_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let limits = LogLimits { queue_bytes: 2_000, ..LogLimits::default() };
    let store = LogStore::open(dir.path().join("logs"), limits).unwrap();
    let sink = store.sink();
    // Each alone is more than may wait.
    for _ in 0..5 {
        sink(line("x".repeat(3_000)));
    }
    sink(line("small"));
    store.flush().await;
    let records: Vec<_> = store.read(F, wanted(u32::MAX, false)).collect().await;
    assert_eq!(records.len(), 2);
    assert_eq!(records[0].text, "small");
    assert!(records[1].text.starts_with("5 lines were dropped"), "{:?}", records[1].text);
    assert_eq!(records[1].stream, LogStream::Platform);
    // What was written has left the queue: as much fits again.
    for _ in 0..100 {
        sink(line("y".repeat(1_500)));
        store.flush().await;
    }
    assert_eq!(texts(&store, u32::MAX).await.len(), 102);
}

#[tokio::test]
async fn the_quietest_log_makes_room_for_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let limits = LogLimits { function_bytes: 32 * 1024, total_bytes: 64 * 1024, ..LogLimits::default() };
    let store = LogStore::open(dir.path().join("logs"), limits).unwrap();
    let sink = store.sink();
    for function in 1..=5 {
        for _ in 0..200 {
            sink(LogLine { function: FunctionId(function), ..line("y".repeat(100)) });
        }
        store.flush().await;
    }
    let count = |function| store.read(FunctionId(function), wanted(u32::MAX, false)).count();
    assert_eq!(count(1).await, 0, "the oldest log is gone");
    assert_eq!(count(5).await, 200, "the newest is whole");
}

#[tokio::test]
async fn logs_are_limited_by_number_and_what_is_read_is_spared() {
    let dir = tempfile::tempdir().unwrap();
    let of = |function| FunctionId(function);
    let limits = LogLimits { functions_max: 3, ..LogLimits::default() };
    let open = || LogStore::open(dir.path().join("logs"), limits).unwrap();
    let there = || {
        let names = std::fs::read_dir(dir.path().join("logs")).unwrap();
        let mut ids: Vec<u32> = names.filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok()).collect();
        ids.sort_unstable();
        ids
    };
    let write = async |store: &LogStore, function: u32| {
        store.sink()(LogLine { function: of(function), ..line(format!("of {function}")) });
        store.flush().await;
    };
    let store = open();
    write(&store, 1).await;
    let mut follower = store.read(of(1), wanted(1, true));
    assert_eq!(follower.next().await.unwrap().text, "of 1");
    for function in 2..=6 {
        write(&store, function).await;
    }
    assert_eq!(there(), [1, 5, 6]);
    write(&store, 1).await;
    assert_eq!(follower.next().await.unwrap().seq, 2, "a follower keeps its log");
    // Whoever has read a log that went gets what is written later: no number is given twice.
    write(&store, 2).await;
    assert_eq!(there(), [1, 2, 6]);
    let again: Vec<_> = store.read(of(2), wanted(9, false)).collect().await;
    assert!(again.len() == 1 && again[0].seq > 1 && again[0].text == "of 2", "{again:?}");
    drop((follower, store));
    let store = open();
    write(&store, 7).await;
    assert_eq!(there().len(), 3);
    let seq = store.read(of(7), wanted(9, false)).map(|r| r.seq).collect::<Vec<_>>().await;
    assert!(seq.len() == 1 && seq[0] > 1, "also after a restart: {seq:?}");
}

#[tokio::test]
async fn of_deleted_functions_the_last_logs_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let limits = LogLimits { deleted_max: 2, ..LogLimits::default() };
    let store = LogStore::open(dir.path().join("logs"), limits).unwrap();
    for function in 1..=50 {
        store.sink()(LogLine { function: FunctionId(function), ..line("said") });
        if function != 10 {
            store.deleted(FunctionId(function));
        }
    }
    store.flush().await;
    let mut kept: Vec<u32> = std::fs::read_dir(dir.path().join("logs"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect();
    kept.sort_unstable();
    assert_eq!(kept, [10, 49, 50]);
    assert_eq!(store.read(FunctionId(50), wanted(9, false)).count().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_readers_do_not_take_all_processors() {
    let dir = tempfile::tempdir().unwrap();
    let store = LogStore::open(dir.path().into(), limits(8 << 20)).unwrap();
    for n in 0..5_000 {
        store.sink()(line(format!("{n} {}", "x".repeat(500))));
    }
    store.flush().await;
    let readers = (0..50).map(|_| tokio::spawn(store.read(F, wanted(5_000, false)).count()));
    for read in futures_util::future::join_all(readers).await {
        assert_eq!(read.unwrap(), 5_000);
    }
    let most = reader::seen::most();
    assert!((1..=reader::STEPS_MAX).contains(&most), "{most} steps at once for 50 readers");
}

/// The texts of those that are selected.
async fn selected(store: &LogStore, tail_lines: u32, select: LogSelect) -> Vec<String> {
    let wanted = Wanted { tail_lines, follow: false, select };
    store.read(F, wanted).map(|record| record.text).collect().await
}

#[tokio::test]
async fn lines_are_selected_by_number_sandbox_and_age() {
    let dir = tempfile::tempdir().unwrap();
    let store = LogStore::open(dir.path().join("logs"), limits(1 << 20)).unwrap();
    let sink = store.sink();
    for n in 0..1_000_u64 {
        sink(LogLine { sandbox: Some(SandboxId(n % 10)), ..line(format!("line {n}")) });
    }
    sink(LogLine { sandbox: None, stream: fanfare_sandbox::LogStream::Platform, ..line("said") });
    store.flush().await;
    let all = LogSelect::default();
    let after = selected(&store, 0, LogSelect { after: Some(998), ..all }).await;
    assert_eq!(after, ["line 998", "line 999", "said"]);
    let of = LogSelect { sandbox: Some(SandboxId(3)), ..all };
    assert_eq!(selected(&store, 3, of).await, ["line 983", "line 993", "said"]);
    assert_eq!(selected(&store, 10_000, of).await.len(), 101);
    assert_eq!(selected(&store, 0, of).await, Vec::<String>::new());
    let hour = Some(Duration::from_secs(3_600));
    assert_eq!(selected(&store, 10_000, LogSelect { age_max: hour, ..all }).await.len(), 1_001);
    assert_eq!(selected(&store, 10_000, LogSelect { age_min: hour, ..all }).await.len(), 0);
    // One that follows goes on with those of the same kind only.
    let mut follower = store.read(F, Wanted { tail_lines: 1, follow: true, select: of });
    assert_eq!(follower.next().await.unwrap().text, "said");
    sink(LogLine { sandbox: Some(SandboxId(4)), ..line("another's") });
    sink(LogLine { sandbox: Some(SandboxId(3)), ..line("its own") });
    assert_eq!(follower.next().await.unwrap().text, "its own");
}

#[tokio::test]
async fn numbers_go_on_after_a_restart_and_are_known_to_begin_anew() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| LogStore::open(dir.path().join(name), limits(1 << 20)).unwrap();
    let first = open("logs");
    first.sink()(line("before"));
    first.flush().await;
    let id = first.id();
    drop(first);
    let second = open("logs");
    assert_eq!(second.id(), id);
    second.sink()(line("after"));
    second.flush().await;
    let wanted = Wanted { select: LogSelect { after: Some(1), ..LogSelect::default() }, ..Wanted::default() };
    let records: Vec<_> = second.read(F, wanted).collect().await;
    assert_eq!(records.iter().map(|r| (r.seq, r.text.as_str())).collect::<Vec<_>>(), [(2, "after")]);
    assert_ne!(open("others").id(), id);
}
