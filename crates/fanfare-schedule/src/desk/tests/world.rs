//! The control plane with its store, data planes, and time.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use super::MINUTE;
use crate::{LATE_MAX, ON_TIME};

/// Calls by their schedule and instant: their number, and since when a data plane has them.
pub(super) type Calls = BTreeMap<(String, u64), (u32, u64)>;

/// The control plane with its store, and two data planes.
pub(super) struct World {
    pub(super) desk: Desk,
    pub(super) wall: u64,
    pub(super) at: u64,
    pub(super) rules: BTreeMap<String, Rules>,
    /// What is durable.
    pub(super) kept: BTreeMap<String, State>,
    pub(super) connected: BTreeSet<DataPlaneId>,
    /// Calls that each data plane has accepted and knows, by key, and since when; they outlive its crashes.
    pub(super) accepted: BTreeMap<DataPlaneId, Calls>,
    /// Who has accepted an occurrence as a new call, which then begins.
    pub(super) begun: BTreeMap<(String, u64), Vec<DataPlaneId>>,
    pub(super) commands: VecDeque<Command>,
    /// Answers on their way.
    pub(super) answers: Vec<(u64, Answer)>,
}

impl World {
    pub(super) fn new() -> Self {
        World {
            desk: Desk::default(),
            // Midnight.
            wall: 694 * 24 * 60 * MINUTE,
            at: 0,
            rules: BTreeMap::new(),
            kept: BTreeMap::new(),
            connected: BTreeSet::new(),
            accepted: BTreeMap::new(),
            begun: BTreeMap::new(),
            commands: VecDeque::new(),
            answers: Vec::new(),
        }
    }

    pub(super) fn now(&self) -> Now {
        Now { at: Timestamp::from_millis(self.at), wall: Wall(self.wall) }
    }

    pub(super) fn add(&mut self, name: &str, rules: Rules) {
        let state = State { after: Wall(self.wall), ..State::default() };
        self.kept.insert(name.to_owned(), state.clone());
        self.rules.insert(name.to_owned(), rules.clone());
        self.desk.set(self.now(), name, rules, state);
    }

    pub(super) fn event(&mut self, event: Event) {
        let mut commands = Vec::new();
        self.desk.step(self.now(), event, &mut commands);
        for command in &commands {
            self.in_time(command);
        }
        self.commands.extend(commands);
    }

    /// No data plane is asked to begin what is too late by then.
    pub(super) fn in_time(&self, command: &Command) {
        let Command::Ask { schedule, only_if_known: false, .. } = command else { return };
        let firing =
            self.desk.state(schedule).and_then(|state| state.firing.clone()).expect("it is asked for");
        let (since, patience) = match self.rules[schedule].missed {
            Missed::Skip => (firing.instant, ON_TIME),
            Missed::Once => (firing.begun, LATE_MAX),
        };
        let late = Duration::from_millis(self.wall.saturating_sub(since.0));
        assert!(late < patience, "{schedule} of {} is asked for {late:?} late", firing.instant);
    }

    /// The data planes drop what they kept of calls that they have had for so long.
    pub(super) fn forget(&mut self, after: Duration) {
        let (wall, after) = (self.wall, after.as_millis() as u64);
        self.accepted.values_mut().for_each(|calls| calls.retain(|_, (_, since)| *since + after > wall));
    }

    pub(super) fn connect(&mut self, data_planes: &[DataPlaneId]) {
        self.connected = data_planes.iter().copied().collect();
        self.event(Event::DataPlanes(data_planes.to_vec()));
    }

    /// Lets time pass, in which nothing is done.
    pub(super) fn pass(&mut self, ms: u64) {
        self.wall += ms;
        self.at += ms;
        self.event(Event::Tick);
    }

    /// Carries out one command; `false` when there is none.
    pub(super) fn act(&mut self) -> bool {
        let Some(command) = self.commands.pop_front() else { return false };
        match command {
            Command::Write(name) => {
                let state = self.desk.state(&name).expect("it is there").clone();
                self.kept.insert(name.clone(), state);
                self.event(Event::Written(name));
            }
            Command::Ask { number, schedule, data_plane, only_if_known } => {
                let kept = self.kept[&schedule].firing.clone().expect("written before it is asked");
                assert_eq!(kept.asked, Some(data_plane), "so that the same one is asked again");
                let has = |calls: &Calls| calls.contains_key(&(schedule.clone(), kept.instant.0));
                let answer = match self.connected.contains(&data_plane) {
                    true if only_if_known && !self.accepted.get(&data_plane).is_some_and(has) => {
                        Answer::Refused {
                            reason: Reason::InvocationNotFound,
                            detail: "it is not kept".into(),
                            for_good: true,
                        }
                    }
                    true => {
                        let calls = self.accepted.entry(data_plane).or_default();
                        let (next, key) = (calls.len() as u32 + 1, (schedule, kept.instant.0));
                        let (id, _) = *calls.entry(key.clone()).or_insert_with(|| {
                            self.begun.entry(key).or_default().push(data_plane);
                            (next, self.wall)
                        });
                        Answer::Accepted(format!("{data_plane}-{id}").into())
                    }
                    false => Answer::NotAsked,
                };
                self.answers.push((number, answer));
            }
        }
        true
    }

    pub(super) fn answer(&mut self) -> bool {
        let Some((number, answer)) = self.answers.pop() else { return false };
        self.event(Event::Answered { number, answer });
        true
    }

    pub(super) fn settle(&mut self) {
        while self.act() || self.answer() {}
    }

    /// `kill -9`, a restart or another leader: all that is not durable is forgotten.
    pub(super) fn crash(&mut self) {
        self.desk = Desk::default();
        self.commands.clear();
        self.answers.clear();
        for (name, state) in &self.kept {
            self.desk.set(self.now(), name, self.rules[name].clone(), state.clone());
        }
        self.event(Event::DataPlanes(self.connected.iter().copied().collect()));
    }

    /// How often each occurrence was accepted as a new call.
    pub(super) fn calls(&self) -> BTreeMap<(String, u64), usize> {
        self.begun.iter().map(|(key, by)| (key.clone(), by.len())).collect()
    }

    pub(super) fn last(&self, name: &str) -> &Outcome {
        &self.kept[name].fired[0].outcome
    }
}
