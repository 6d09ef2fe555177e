//! Which data plane owns which function.
//!
//! A function's requests queue on its owner, so that one queue sees all of them; other data planes forward once.
//!
//! Source: Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads" (SODA 2018). Functions and
//! data planes are points on a ring; a function belongs to the first data plane clockwise of it that owns fewer
//! functions than the bound, which is 1.25 times the mean, rounded up. A data plane that joins takes only functions
//! for which it now comes first, one that leaves gives up only its own, and besides these only those move that a
//! changed bound pushes out.
//!
//! The paper gives every data plane one point; here each has several, so that its share is even before the bound
//! has to make it so.

use std::collections::BTreeMap;

use fanfare_types::{DataPlaneId, FunctionId};

use crate::hash::{mix, mix_pair};

/// Points of one data plane on the ring.
const POINTS: u64 = 64;
/// The bound over the mean, as a fraction: 5/4.
const BOUND: (usize, usize) = (5, 4);

/// A function that changed hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The function.
    pub function: FunctionId,
    /// Its previous owner, if it had one.
    pub from: Option<DataPlaneId>,
    /// Its owner now, if there is one.
    pub to: Option<DataPlaneId>,
}

/// The owners of all `functions`, from nothing. The same functions and data planes give the same owners, in whatever
/// order they come.
#[must_use]
pub fn owners(functions: impl IntoIterator<Item = FunctionId>, data_planes: &[DataPlaneId]) -> Owners {
    let mut owners = Owners::new();
    for &data_plane in data_planes {
        owners.insert_plane(data_plane);
    }
    owners.functions = functions.into_iter().map(|function| (function, None)).collect();
    owners.rebuild_ring();
    owners.settle();
    owners
}

/// Owners, kept up to date as functions and data planes come and go.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    functions: BTreeMap<FunctionId, Option<DataPlaneId>>,
    /// Ordered by id.
    planes: Vec<Plane>,
    /// Points and whose they are, as a position in `planes`; ordered.
    ring: Vec<(u64, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct Plane {
    id: DataPlaneId,
    functions: usize,
}

impl Owners {
    /// Nobody owns anything.
    #[must_use]
    pub fn new() -> Self {
        Owners::default()
    }

    /// The owner of a function. `None` if it has none or is unknown.
    #[must_use]
    pub fn owner(&self, function: FunctionId) -> Option<DataPlaneId> {
        self.functions.get(&function).copied().flatten()
    }

    /// Every function and its owner, in the order of their ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (FunctionId, Option<DataPlaneId>)> {
        self.functions.iter().map(|(function, owner)| (*function, *owner))
    }

    /// Every data plane and how many functions it owns, in the order of their ids.
    pub fn data_planes(&self) -> impl ExactSizeIterator<Item = (DataPlaneId, usize)> {
        self.planes.iter().map(|plane| (plane.id, plane.functions))
    }

    /// Gives a function an owner and returns it; one that has an owner keeps it. `None` while there is no data plane;
    /// the function gets an owner as soon as there is one. No other function moves.
    pub fn assign(&mut self, function: FunctionId) -> Option<DataPlaneId> {
        if let Some(owner) = self.functions.get(&function) {
            return *owner;
        }
        self.functions.insert(function, None);
        let plane = self.first_with_room(function, self.bound())?;
        Some(self.give(function, plane))
    }

    /// Forgets a function. Others move only when the bound falls with it.
    pub fn remove_function(&mut self, function: FunctionId) -> Vec<Move> {
        if let Some(owner) = self.functions.remove(&function) {
            self.take_from(owner);
        }
        self.shed_excess()
    }

    /// A data plane joins. Returns the functions that it takes over, and those that the lower bound moves.
    pub fn add_data_plane(&mut self, data_plane: DataPlaneId) -> Vec<Move> {
        if !self.insert_plane(data_plane) {
            return Vec::new();
        }
        self.rebuild_ring();
        let before = self.functions.clone();
        let bound = self.bound();
        for (&function, &owner) in &before {
            let Some(joined) =
                self.plane_of(data_plane).filter(|joined| self.planes[*joined].functions < bound)
            else {
                break;
            };
            if owner.is_some_and(|owner| self.comes_first(function, data_plane, owner)) {
                self.take_from(owner);
                self.give(function, joined);
            }
        }
        self.settle();
        self.shed_excess();
        self.moved_since(&before)
    }

    /// A data plane leaves. Returns its functions, which others take over.
    pub fn remove_data_plane(&mut self, data_plane: DataPlaneId) -> Vec<Move> {
        let Some(position) = self.plane_of(data_plane) else {
            return Vec::new();
        };
        let before = self.functions.clone();
        self.planes.remove(position);
        self.rebuild_ring();
        for owner in self.functions.values_mut().filter(|owner| **owner == Some(data_plane)) {
            *owner = None;
        }
        self.settle();
        self.moved_since(&before)
    }

    /// Most functions that one data plane may own.
    #[must_use]
    pub fn bound(&self) -> usize {
        (self.functions.len() * BOUND.0).div_ceil((self.planes.len() * BOUND.1).max(1))
    }

    /// Gives every function without an owner one.
    fn settle(&mut self) {
        let bound = self.bound();
        let homeless: Vec<_> = self.functions.iter().filter(|(_, o)| o.is_none()).map(|(f, _)| *f).collect();
        for function in homeless {
            if let Some(plane) = self.first_with_room(function, bound) {
                self.give(function, plane);
            }
        }
    }

    /// Moves functions off data planes that own more than the bound. The highest ids go: those that came last.
    fn shed_excess(&mut self) -> Vec<Move> {
        let bound = self.bound();
        if self.planes.iter().all(|plane| plane.functions <= bound) {
            return Vec::new();
        }
        let mut excess = Vec::new();
        for (&function, &owner) in self.functions.iter().rev() {
            let Some(plane) = owner.and_then(|owner| self.plane_of(owner)) else {
                continue;
            };
            if self.planes[plane].functions > bound {
                self.planes[plane].functions -= 1;
                excess.push((function, owner));
            }
        }
        let mut moves = Vec::with_capacity(excess.len());
        for (function, from) in excess.into_iter().rev() {
            let to = self.first_with_room(function, bound).map(|plane| self.give(function, plane));
            moves.push(Move { function, from, to });
        }
        moves
    }

    fn moved_since(&self, before: &BTreeMap<FunctionId, Option<DataPlaneId>>) -> Vec<Move> {
        let pairs = before.iter().zip(&self.functions);
        let moved = pairs.filter(|((_, from), (_, to))| from != to);
        moved.map(|((function, from), (_, to))| Move { function: *function, from: *from, to: *to }).collect()
    }

    fn give(&mut self, function: FunctionId, plane: usize) -> DataPlaneId {
        let plane = &mut self.planes[plane];
        plane.functions += 1;
        self.functions.insert(function, Some(plane.id));
        plane.id
    }

    fn take_from(&mut self, owner: Option<DataPlaneId>) {
        if let Some(plane) = owner.and_then(|owner| self.plane_of(owner)) {
            self.planes[plane].functions -= 1;
        }
    }

    /// The first data plane clockwise of the function that owns fewer than `bound`. There is one whenever there is a
    /// data plane, as all bounds together exceed the number of functions.
    fn first_with_room(&self, function: FunctionId, bound: usize) -> Option<usize> {
        self.clockwise(function).find(|plane| self.planes[*plane].functions < bound)
    }

    fn comes_first(&self, function: FunctionId, a: DataPlaneId, b: DataPlaneId) -> bool {
        let first =
            self.clockwise(function).map(|plane| self.planes[plane].id).find(|id| *id == a || *id == b);
        first == Some(a)
    }

    /// The data planes clockwise of a function, once for each of their points.
    fn clockwise(&self, function: FunctionId) -> impl Iterator<Item = usize> {
        let start = self.ring.partition_point(|(point, _)| *point < mix(u64::from(function.0)));
        let (before, after) = self.ring.split_at(start);
        after.iter().chain(before).map(|(_, plane)| *plane)
    }

    fn plane_of(&self, id: DataPlaneId) -> Option<usize> {
        self.planes.binary_search_by_key(&id, |plane| plane.id).ok()
    }

    fn insert_plane(&mut self, id: DataPlaneId) -> bool {
        match self.planes.binary_search_by_key(&id, |plane| plane.id) {
            Ok(_) => false,
            Err(position) => {
                self.planes.insert(position, Plane { id, functions: 0 });
                true
            }
        }
    }

    fn rebuild_ring(&mut self) {
        let points = |(position, plane): (usize, &Plane)| {
            // Another domain than the functions' points: those hash one number.
            let id = u64::from(plane.id.0);
            (0..POINTS).map(move |point| (mix_pair(!id, point), position))
        };
        self.ring = self.planes.iter().enumerate().flat_map(points).collect();
        self.ring.sort_unstable();
    }
}

#[cfg(test)]
mod tests;
