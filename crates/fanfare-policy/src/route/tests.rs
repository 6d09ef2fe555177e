use super::*;
use proptest::prelude::*;

fn functions(n: u32) -> impl Iterator<Item = FunctionId> {
    (0..n).map(FunctionId)
}

fn planes(n: u32) -> Vec<DataPlaneId> {
    (0..n).map(DataPlaneId).collect()
}

/// What always holds: counts are right, nobody is above the bound, and nobody is homeless beside a data plane.
fn check(owners: &Owners) {
    let bound = owners.bound();
    for (plane, owned) in owners.data_planes() {
        let counted = owners.iter().filter(|(_, owner)| *owner == Some(plane)).count();
        assert_eq!(owned, counted, "{plane}");
        assert!(owned <= bound, "{plane} owns {owned}, the bound is {bound}");
    }
    let homeless = owners.iter().filter(|(_, owner)| owner.is_none()).count();
    assert!(homeless == 0 || owners.data_planes().len() == 0, "{homeless} without an owner");
}

/// Moves are exactly the difference between two states.
fn check_moves(before: &Owners, after: &Owners, moves: &[Move]) {
    let changed: Vec<_> = after
        .iter()
        .filter(|(function, to)| before.owner(*function) != *to)
        .map(|(function, to)| Move { function, from: before.owner(function), to })
        .collect();
    assert_eq!(moves, changed);
}

/// A join moves a function only because the new data plane comes first for it, or because the lower bound pushes it
/// out; of the latter there are no more than the bound asks for.
fn check_join(before: &Owners, after: &Owners, joined: DataPlaneId, moves: &[Move]) {
    let pushed_out = moves.iter().filter(|m| {
        let first = m.from.is_none_or(|from| after.comes_first(m.function, joined, from));
        m.to != Some(joined) || !first
    });
    let excess: usize = before.data_planes().map(|(_, owned)| owned.saturating_sub(after.bound())).sum();
    assert!(before.data_planes().len() == 0 || pushed_out.count() <= excess, "{moves:?}");
}

#[test]
fn none_one_and_many() {
    let mut owners = Owners::new();
    assert_eq!(owners.assign(FunctionId(1)), None, "no data plane");
    let moves = owners.add_data_plane(DataPlaneId(7));
    let only = Move { function: FunctionId(1), from: None, to: Some(DataPlaneId(7)) };
    assert_eq!(moves, [only]);
    assert_eq!(owners.assign(FunctionId(2)), Some(DataPlaneId(7)));
    assert_eq!(owners.add_data_plane(DataPlaneId(7)), [], "known already");
    assert_eq!(owners.owner(FunctionId(3)), None);
    assert_eq!(owners.remove_data_plane(DataPlaneId(9)), [], "unknown");
    let gone = owners.remove_data_plane(DataPlaneId(7));
    assert_eq!(gone.len(), 2);
    assert!(gone.iter().all(|m| m.to.is_none()));
    check(&owners);
}

#[test]
fn bounds() {
    for (n, data_planes, want) in [(0, 3, 0), (1, 3, 1), (8, 2, 5), (100, 4, 32), (10, 1, 13), (5, 0, 25)] {
        assert_eq!(owners(functions(n), &planes(data_planes)).bound(), want, "{n} over {data_planes}");
    }
}

#[test]
fn owners_do_not_depend_on_the_order() {
    let mut reversed = planes(7);
    reversed.reverse();
    let all: Vec<_> = functions(1_000).collect();
    let forwards = owners(all.iter().copied(), &planes(7));
    let backwards = owners(all.iter().rev().copied(), &reversed);
    assert!(forwards.iter().eq(backwards.iter()));
    check(&forwards);
}

/// Pinned: a new version that hashes otherwise would move every function of a running cluster.
#[test]
fn owners_are_the_same_in_every_version() {
    let owners = owners(functions(8), &planes(3));
    let got: Vec<_> = owners.iter().map(|(_, owner)| owner.unwrap().0).collect();
    assert_eq!(got, [0, 0, 2, 2, 2, 1, 2, 1]);
}

#[test]
fn a_join_and_a_leave_move_few() {
    let (n, data_planes) = (10_000, 10);
    let before = owners(functions(n), &planes(data_planes));
    let mut joined = before.clone();
    let moves = joined.add_data_plane(DataPlaneId(data_planes));
    check(&joined);
    check_moves(&before, &joined, &moves);
    check_join(&before, &joined, DataPlaneId(data_planes), &moves);
    let fair = n as usize / (data_planes as usize + 1);
    assert!(
        moves.len() >= fair / 2 && moves.len() <= fair * 2,
        "{} moved, a fair share is {fair}",
        moves.len()
    );

    let mut left = before.clone();
    let moves = left.remove_data_plane(DataPlaneId(4));
    check(&left);
    check_moves(&before, &left, &moves);
    let owned = before.data_planes().nth(4).unwrap().1;
    assert_eq!(moves.len(), owned, "only its own functions move");
}

#[test]
fn functions_that_go_lower_the_bound() {
    let mut owners = owners(functions(400), &planes(4));
    for function in functions(399) {
        let before = owners.clone();
        let moves = owners.remove_function(function);
        check(&owners);
        check_moves(&before, &owners, &moves);
        assert!(moves.len() <= 4, "{} moved for one that went", moves.len());
    }
    assert_eq!(owners.iter().len(), 1);
    assert_eq!(owners.remove_function(FunctionId(0)), [], "unknown");
}

#[derive(Clone, Debug)]
enum Step {
    Assign(u32),
    Forget(u32),
    Join(u32),
    Leave(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u32..200).prop_map(Step::Assign),
        2 => (0_u32..200).prop_map(Step::Forget),
        1 => (0_u32..8).prop_map(Step::Join),
        1 => (0_u32..8).prop_map(Step::Leave),
    ]
}

proptest! {
    #[test]
    fn whatever_comes_and_goes(steps in prop::collection::vec(step(), 1..150)) {
        let mut owners = Owners::new();
        for step in steps {
            let before = owners.clone();
            let moves = match step {
                Step::Assign(function) => {
                    let owner = owners.assign(FunctionId(function));
                    prop_assert_eq!(owner, owners.owner(FunctionId(function)));
                    // The function itself is not a move; nobody else may move.
                    let others = |o: &Owners| o.iter().filter(|(f, _)| f.0 != function).collect::<Vec<_>>();
                    prop_assert_eq!(others(&before), others(&owners));
                    check(&owners);
                    continue;
                }
                Step::Forget(function) => owners.remove_function(FunctionId(function)),
                Step::Join(plane) => {
                    let moves = owners.add_data_plane(DataPlaneId(plane));
                    check_join(&before, &owners, DataPlaneId(plane), &moves);
                    moves
                }
                Step::Leave(plane) => {
                    let moves = owners.remove_data_plane(DataPlaneId(plane));
                    prop_assert!(moves.iter().all(|m| m.from == Some(DataPlaneId(plane))));
                    moves
                }
            };
            check(&owners);
            check_moves(&before, &owners, &moves);
        }
    }
}
