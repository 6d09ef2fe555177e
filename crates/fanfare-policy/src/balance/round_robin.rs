//! The next free sandbox in the order of their ids.
//!
//! By id rather than by position, because the candidates come in another order each time.

use fanfare_types::SandboxId;

use super::{Candidate, ChoiceReason, free};

/// The sandbox used last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    last: Option<SandboxId>,
}

pub(super) fn choose(cursor: &mut Cursor, candidates: &[Candidate]) -> Option<(usize, ChoiceReason)> {
    // `false` sorts before `true`: those after the last one come first, then around from the lowest.
    let in_turn = |id: SandboxId| (cursor.last.is_some_and(|last| id <= last), id);
    let (index, chosen) = free(candidates).min_by_key(|(_, candidate)| in_turn(candidate.id))?;
    cursor.last = Some(chosen.id);
    Some((index, ChoiceReason::NextInTurn))
}

#[cfg(test)]
mod tests {
    use super::super::tests::candidates;
    use super::*;

    #[test]
    fn in_turn_in_whatever_order_they_come() {
        let mut cursor = Cursor::default();
        let mut next = |candidates: &[Candidate]| {
            choose(&mut cursor, candidates).map(|(index, _)| candidates[index].id.0)
        };
        let all = candidates(&[(1, 0), (1, 0), (1, 0), (1, 0)]);
        let mut reversed = all.clone();
        reversed.reverse();
        assert_eq!([next(&all), next(&reversed), next(&all)], [Some(0), Some(1), Some(2)]);
        assert_eq!([next(&all[..2]), next(&all)], [Some(0), Some(1)], "3 was missing when it was its turn");
        assert_eq!(next(&candidates(&[(1, 0), (1, 0), (1, 1), (1, 1)])), Some(0), "2 and 3 are full");
        assert_eq!(next(&candidates(&[(1, 1)])), None);
        assert_eq!(next(&all), Some(1), "finding none does not move on");
    }
}
