//! Proofs that a revision starts: what they say of one that has started before, and of one that starts after all.

use fanfare_types::*;

use super::world::*;
use crate::Event;

const SECOND: RevisionId = RevisionId { function: F, number: 2 };

fn timeout() -> StartFailure {
    StartFailure {
        kind: StartFailureKind::Timeout,
        detail: "not ready after 30 s".to_owned(),
        log_tail: String::new(),
    }
}

/// Whether the engine says that a revision had started when its proof has failed, after `before` happened to it.
fn had_started(before: impl Fn(&mut World)) -> bool {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 1);
    world.start_all();
    world.finish(D, 1);
    world.set_function(F, 2, spec("f", 1, Scaling::default()));
    world.settle();
    before(&mut world);
    world.unprepared = Some(timeout());
    world.step(Event::PrepareRequested { id: SECOND, spec: spec("f", 1, Scaling::default()).into() });
    world.settle();
    assert_eq!(world.prepared.last(), Some(&(SECOND, Err(timeout()))));
    world.had_started.pop().unwrap()
}

#[test]
fn a_failed_proof_says_whether_the_revision_had_started() {
    type Before = fn(&mut World);
    let cases: [(&str, Before, bool); 5] = [
        ("only the revision before has", |_| {}, false),
        ("its start failed", |world| while world.start_one(N, 0, false) {}, false),
        ("a sandbox of it is ready", World::start_all, true),
        (
            "it was proved",
            |world| {
                let prepare =
                    Event::PrepareRequested { id: SECOND, spec: spec("f", 1, Scaling::default()).into() };
                world.step(prepare);
                world.settle();
            },
            true,
        ),
        (
            "a sandbox of it has outlived the leader before",
            |world| {
                world.start_all();
                world.restart_engine(&[(F, 2, spec("f", 1, Scaling::default()))]);
                world.connect_node(N);
                world.connect_plane(D);
                world.settle();
            },
            true,
        ),
    ];
    for (what, before, expected) in cases {
        assert_eq!(had_started(before), expected, "{what}");
    }
}

#[test]
fn that_a_revision_starts_after_all_is_said_once() {
    let mut world = World::small(10, 1, Scaling::default());
    world.step(Event::FailureKept { id: RevisionId { function: F, number: 1 }, failure: timeout() });
    world.arrive(D, F, 1);
    world.start_all();
    world.finish(D, 1);
    assert_eq!(world.recovered, [RevisionId { function: F, number: 1 }]);
    assert!(world.engine.function_status(F).unwrap().last_failure.is_none());
    world.arrive(D, F, 5);
    world.start_all();
    assert_eq!(world.recovered.len(), 1, "nothing was wrong with it any more");
}
