//! Code on its way to a sandbox.

use std::sync::Arc;

use fanfare_sandbox::SandboxExit;
use fanfare_types::{CodeDigest, ExitCause, FromNode, SandboxId, SandboxRecord, StartFailureKind, ToNode};
use futures_util::future::join_all;

use crate::rig::{Call, Rig, Setup, archive, digest, exists, ready, rev, spec, started, within};

#[tokio::test]
async fn a_blob_is_fetched_once_however_many_ask() {
    let rig = Rig::start(Setup::default()).await;
    let blob = archive("hello.py", 5_000);
    let code = digest(&blob);
    rig.keep_blob(code, blob);
    let all = join_all((0..20).map(|_| rig.outlets.code.directory(code)));
    let directories = within("the code", all).await;
    let place = rig.path("code").join(code.to_string());
    assert!(directories.iter().all(|directory| directory.as_ref() == Ok(&place)));
    assert_eq!(std::fs::read(place.join("hello.py")).unwrap(), vec![b'c'; 5_000]);
    assert_eq!(rig.outlets.code.directory(code).await, Ok(place));
    assert_eq!(rig.fetches(), 1);
    assert_eq!(std::fs::read_dir(rig.path("code/.incoming")).unwrap().count(), 0);
}

#[tokio::test]
async fn what_is_not_the_code_is_refused_and_leaves_nothing() {
    let rig = Rig::start(Setup::default()).await;
    let blob = archive("hello.py", 5_000);
    let mut altered = blob.clone();
    altered[600] ^= 1;
    let evil =
        archive("evil", 10).iter().map(|byte| if *byte == b'e' { b'/' } else { *byte }).collect::<Vec<_>>();
    let garbage: Vec<u8> = (0..2_048_u32).map(|n| (n * 131 % 255 + 1) as u8).collect();
    let short = blob[..700].to_vec();
    let cases = [
        ("missing", CodeDigest([1; 32]), None, "there is no blob"),
        ("altered", digest(&blob), Some(altered), "what came is"),
        ("garbage", digest(&garbage), Some(garbage.clone()), "not a tar archive"),
        ("not an archive", digest(b"#!/bin/sh"), Some(b"#!/bin/sh".to_vec()), "unpacked"),
        ("cut short", digest(&short), Some(short.clone()), "unpacked"),
        ("a damaged archive", digest(&evil), Some(evil.clone()), "unpacked"),
    ];
    for (what, code, bytes, why) in cases {
        if let Some(bytes) = bytes {
            rig.keep_blob(code, bytes);
        }
        let failure = within(what, rig.outlets.code.directory(code)).await.unwrap_err();
        assert_eq!(failure.kind, StartFailureKind::Code, "{what}");
        assert!(failure.detail.contains(why), "{what}: {}", failure.detail);
        assert!(failure.detail.chars().count() <= 300);
        let printable = |c: char| !c.is_control() && c != char::REPLACEMENT_CHARACTER;
        assert!(failure.detail.chars().all(printable), "{what}: {:?}", failure.detail);
        assert!(!exists(&rig.path("code").join(code.to_string())), "{what}");
    }
    assert_eq!(std::fs::read_dir(rig.path("code/.incoming")).unwrap().count(), 0);
    // A failure is not remembered: the same code may come right next time.
    rig.keep_blob(digest(&blob), blob.clone());
    within("the code", rig.outlets.code.directory(digest(&blob))).await.unwrap();
}

#[tokio::test]
async fn code_outlives_the_daemon_and_half_fetched_code_does_not() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let blob = archive("hello.py", 5_000);
    let code = digest(&blob);
    let mut rig = Rig::start_in(dir.clone(), Setup::default()).await.unwrap();
    rig.keep_blob(code, blob);
    within("the code", rig.outlets.code.directory(code)).await.unwrap();
    let leftover = rig.path("code/.incoming/half.tar");
    std::fs::write(&leftover, "half").unwrap();
    rig.stop.send(()).unwrap();
    let Some(Call::Shutdown(done)) = within("the shutdown", rig.calls.recv()).await else {
        panic!("no shutdown")
    };
    done.send(()).unwrap();
    within("the daemon's end", rig.node.join()).await;

    let rig = Rig::start_in(dir, Setup::default()).await.unwrap();
    within("the code", rig.outlets.code.directory(code)).await.unwrap();
    assert_eq!(rig.fetches(), 0);
    assert!(!exists(&leftover));
}

#[tokio::test]
async fn the_oldest_unused_code_makes_room_after_its_template_is_gone() {
    // Room for two of three.
    let mut rig = Rig::start(Setup { code_bytes_max: 25_000, ..Setup::default() }).await;
    let mut leader = rig.ready_link().await;
    let blobs: Vec<_> = ["a", "b", "c"].map(|name| archive(name, 8_000)).into();
    let codes: Vec<_> = blobs.iter().map(|blob| digest(blob)).collect();
    for (blob, code) in blobs.iter().zip(&codes) {
        rig.keep_blob(*code, blob.clone());
    }
    let place = |rig: &Rig, n: usize| rig.path("code").join(codes[n].to_string());
    // Revision 1 runs code a; revision 2 ran code b and left a template.
    for (n, revision) in [(0, 1), (1, 2)] {
        leader.tell(ToNode::Revision(spec(revision, Some(codes[n]))));
        leader.create(u64::from(revision), revision);
        let (_, answer) = rig.create_call().await;
        within("the code", rig.outlets.code.directory(codes[n])).await.unwrap();
        answer.send(Ok(started(u64::from(revision)))).unwrap();
        assert_eq!(leader.next().await, ready(u64::from(revision)));
    }
    let gone = SandboxExit { sandbox: SandboxId(2), cause: ExitCause::Stopped, log_tail: String::new() };
    (rig.outlets.exits)(gone);
    assert!(matches!(leader.next().await, FromNode::Exited { .. }));

    // Code c needs room. Code a was used before b, but is in use; b goes once its template has.
    let asked = tokio::spawn(rig.outlets.code.directory(codes[2]));
    let Call::Forget(revision, done) = rig.call().await else { panic!("nothing was forgotten") };
    assert_eq!(revision, rev(2));
    assert!(exists(&place(&rig, 1)), "removed under its template");
    done.send(()).unwrap();
    within("the code", asked).await.unwrap().unwrap();
    assert!(exists(&place(&rig, 0)) && !exists(&place(&rig, 1)) && exists(&place(&rig, 2)));
    // Whoever wants b again gets it again: c is nobody's.
    within("the code", rig.outlets.code.directory(codes[1])).await.unwrap();
    assert!(exists(&place(&rig, 1)) && !exists(&place(&rig, 2)));
    assert_eq!(rig.fetches(), 4);
}

#[tokio::test]
async fn codes_are_limited_by_number_and_those_in_use_are_spared() {
    let mut rig = Rig::start(Setup { codes_max: 3, ..Setup::default() }).await;
    let mut leader = rig.ready_link().await;
    let blobs: Vec<_> = ["a", "b", "c", "d", "e", "f"].map(|name| archive(name, 100)).into();
    for blob in &blobs {
        rig.keep_blob(digest(blob), blob.clone());
    }
    // The first is in use, and used the longest ago.
    leader.tell(ToNode::Revision(spec(1, Some(digest(&blobs[0])))));
    leader.create(1, 1);
    let (_, answer) = rig.create_call().await;
    within("the code", rig.outlets.code.directory(digest(&blobs[0]))).await.unwrap();
    answer.send(Ok(started(1))).unwrap();
    assert_eq!(leader.next().await, ready(1));
    for blob in &blobs[1..] {
        within("the code", rig.outlets.code.directory(digest(blob))).await.unwrap();
    }
    let kept: Vec<_> = blobs.iter().map(|b| exists(&rig.path("code").join(digest(b).to_string()))).collect();
    assert_eq!(kept, [true, false, false, false, true, true]);
}

#[tokio::test]
async fn code_that_finds_no_room_is_refused() {
    let mut rig = Rig::start(Setup { code_bytes_max: 15_000, ..Setup::default() }).await;
    let mut leader = rig.ready_link().await;
    let (used, wanted) = (archive("used", 8_000), archive("wanted", 8_000));
    rig.keep_blob(digest(&used), used.clone());
    rig.keep_blob(digest(&wanted), wanted.clone());
    leader.tell(ToNode::Revision(spec(2, Some(digest(&used)))));
    leader.create(1, 2);
    let (_, answer) = rig.create_call().await;
    within("the code", rig.outlets.code.directory(digest(&used))).await.unwrap();
    answer.send(Ok(started(1))).unwrap();
    assert_eq!(leader.next().await, ready(1));
    let refused = within("the refusal", rig.outlets.code.directory(digest(&wanted))).await.unwrap_err();
    assert!(refused.detail.contains("in use"), "{}", refused.detail);
}

#[tokio::test]
async fn code_of_recovered_sandboxes_is_in_use() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let setup = || Setup { code_bytes_max: 15_000, ..Setup::default() };
    let (used, wanted) = (archive("used", 8_000), archive("wanted", 8_000));
    let mut rig = Rig::start_in(dir.clone(), setup()).await.unwrap();
    rig.keep_blob(digest(&used), used.clone());
    let mut leader = rig.ready_link().await;
    leader.tell(ToNode::Revision(spec(2, Some(digest(&used)))));
    leader.create(1, 2);
    let (_, answer) = rig.create_call().await;
    within("the code", rig.outlets.code.directory(digest(&used))).await.unwrap();
    answer.send(Ok(started(1))).unwrap();
    assert_eq!(leader.next().await, ready(1));
    rig.stop.send(()).unwrap();
    let Some(Call::Shutdown(done)) = within("the shutdown", rig.calls.recv()).await else {
        panic!("no shutdown")
    };
    done.send(()).unwrap();
    drop(leader);
    within("the daemon's end", rig.node.join()).await;

    // Its successor finds the sandbox, and knows its code though nobody has told it of the revision.
    let record =
        SandboxRecord { sandbox: SandboxId(1), revision: rev(2), endpoint: Some("unix:/old".into()) };
    let rig = Rig::start_in(dir.clone(), Setup { recovered: vec![record], ..setup() }).await.unwrap();
    rig.keep_blob(digest(&wanted), wanted.clone());
    let refused = within("the refusal", rig.outlets.code.directory(digest(&wanted))).await.unwrap_err();
    assert!(refused.detail.contains("in use"), "{}", refused.detail);
}
