//! The fewest nodes that are enough: doubled until they are, then halved between too few and enough.
//!
//! It takes for granted that more nodes are not worse. Where the scatter of placement makes them so, the number that is
//! found is enough, and one below it was not.

use crate::exit::Failure;

/// By less than this share a slowdown does not count as better.
const BETTER: f64 = 0.01;

/// What came of one number of nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tried {
    pub(super) failed: u64,
    pub(super) slowdown: f64,
}

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// So many are enough.
    Enough(u32),
    /// No number is, and why.
    None(String),
}

/// Tries numbers from 1 to `max` until the fewest nodes are known on which nothing fails and slowdown is at most `bound`.
///
/// # Errors
/// Those of `attempt`.
pub(super) fn fewest(
    max: u32,
    bound: f64,
    mut attempt: impl FnMut(u32) -> Result<Tried, Failure>,
) -> Result<Found, Failure> {
    let enough = |tried: Tried| tried.failed == 0 && tried.slowdown <= bound;
    let (mut too_few, mut nodes, mut before) = (0, 1, None);
    loop {
        let tried = attempt(nodes)?;
        if enough(tried) {
            break;
        }
        // Where doubling does not help, it is not for want of room that requests wait or fail.
        let helps = before.is_none_or(|before: Tried| {
            tried.failed < before.failed || tried.slowdown < before.slowdown * (1.0 - BETTER)
        });
        if !helps || nodes == max {
            let why = match tried.failed {
                0 => format!("slowdown is {:.2} on {nodes} nodes", tried.slowdown),
                failed => format!("slowdown is {:.2} on {nodes} nodes, and {failed} fail", tried.slowdown),
            };
            let why = if helps { why } else { format!("{why}, and on half of them no more") };
            return Ok(Found::None(why));
        }
        (too_few, before) = (nodes, Some(tried));
        nodes = nodes.saturating_mul(2).min(max);
    }
    while nodes - too_few > 1 {
        let middle = too_few + (nodes - too_few) / 2;
        if enough(attempt(middle)?) {
            nodes = middle;
        } else {
            too_few = middle;
        }
    }
    Ok(Found::Enough(nodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load that `room` nodes hold, and whose slowdown is then `least`.
    fn found(max: u32, bound: f64, room: u32, least: f64) -> (Found, Vec<u32>) {
        let mut tried = Vec::new();
        let attempt = |nodes: u32| {
            tried.push(nodes);
            let slowdown = if nodes < room { 100.0 * f64::from(room) / f64::from(nodes) } else { least };
            Ok(Tried { failed: u64::from(nodes < room / 2), slowdown })
        };
        (fewest(max, bound, attempt).unwrap(), tried)
    }

    #[test]
    fn the_fewest_are_found_and_few_are_tried() {
        for room in (1..70).chain([1_000, 9_999, 20_000]) {
            let (found, tried) = found(20_000, 2.0, room, 1.5);
            assert_eq!(found, Found::Enough(room));
            assert!(tried.len() <= 30, "{room}: {tried:?}");
            assert!(room == 1 || tried.contains(&(room - 1)), "{room}: {tried:?}");
        }
    }

    #[test]
    fn where_none_are_enough_it_says_why_and_ends() {
        let (none, tried) = found(20_000, 1.2, 20, 1.5);
        assert_eq!(tried, [1, 2, 4, 8, 16, 32, 64]);
        assert!(
            matches!(&none, Found::None(why) if why.contains("1.50 on 64 nodes, and on half")),
            "{none:?}"
        );
        let (none, tried) = found(100, 2.0, 101, 1.5);
        assert_eq!(tried.last(), Some(&100));
        assert!(matches!(&none, Found::None(why) if why.ends_with("on 100 nodes")), "{none:?}");
    }

    #[test]
    fn what_fails_is_not_enough_however_quick() {
        let mut tried = 0;
        let always = |_| {
            tried += 1;
            Ok(Tried { failed: 3, slowdown: 1.0 })
        };
        let none = fewest(20_000, 2.0, always).unwrap();
        assert!(matches!(&none, Found::None(why) if why.contains("3 fail")), "{none:?}");
        assert_eq!(tried, 2);
    }

    #[test]
    fn a_failure_ends_it() {
        assert!(fewest(10, 2.0, |_| Err(Failure::usage("no"))).is_err());
    }
}
