//! What a revision's environment says about its sandboxes.

use std::time::Duration;

use fanfare_types::{RevisionSpec, SandboxId, StartFailure, StartFailureKind};

use super::draw::Draw;
use super::runtime::FakeOptions;

/// The status of a creation that failed by chance.
const CHANCE_STATUS: i32 = 1;

/// Deviations of one revision from the runtime's options.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Script {
    pub(super) create_delay: Option<Duration>,
    pub(super) failure_rate: Option<f64>,
    pub(super) start: Start,
    pub(super) say: Option<String>,
    pub(super) stubborn: bool,
}

/// How its creation ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Start {
    #[default]
    Ready,
    Never,
    Exit(i32),
}

/// What is to become of a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    /// When it is decided; `None` for never.
    pub(super) delay: Option<Duration>,
    /// The status that it ends with instead of becoming ready.
    pub(super) exit: Option<i32>,
}

impl Script {
    /// What becomes of the creation of this sandbox, or of a trial start.
    pub(super) fn fate(&self, options: &FakeOptions, sandbox: Option<SandboxId>) -> Fate {
        let mut draw = Draw::new(options.seed, sandbox.map_or(0, |id| id.0));
        let jitter = options.jitter.mul_f64(draw.uniform());
        let delay = self.create_delay.unwrap_or_else(|| options.create_delay.saturating_add(jitter));
        // A trial start must say whether the function can start, which chance does not decide.
        let unlucky = sandbox.is_some() && draw.uniform() < self.failure_rate.unwrap_or(options.failure_rate);
        match self.start {
            Start::Never => Fate { delay: None, exit: None },
            Start::Exit(status) => Fate { delay: Some(delay), exit: Some(status) },
            Start::Ready => Fate { delay: Some(delay), exit: unlucky.then_some(CHANCE_STATUS) },
        }
    }

    /// Reads the revision's environment; a later variable of the same name counts.
    ///
    /// # Errors
    /// A variable of the fake's that cannot be read: kind `HandlerNotFound`, for it is the function that is wrong.
    pub(super) fn read(revision: &RevisionSpec) -> Result<Script, StartFailure> {
        let mut script = Script::default();
        for (name, value) in &revision.env {
            let understood = match name.as_str() {
                "FAKE_CREATE_DELAY_MS" => {
                    script.create_delay = value.parse().ok().map(Duration::from_millis);
                    script.create_delay.is_some()
                }
                "FAKE_FAILURE_RATE" => {
                    script.failure_rate = value.parse().ok().filter(|rate| (0.0..=1.0).contains(rate));
                    script.failure_rate.is_some()
                }
                "FAKE_START" => match Start::parse(value) {
                    Some(start) => {
                        script.start = start;
                        true
                    }
                    None => false,
                },
                "FAKE_SAY" => {
                    script.say = Some(value.clone());
                    true
                }
                "FAKE_STUBBORN" => {
                    script.stubborn = true;
                    true
                }
                _ => true,
            };
            if !understood {
                let shown: String = value.chars().take(100).collect();
                return Err(StartFailure {
                    kind: StartFailureKind::HandlerNotFound,
                    detail: format!("the fake runtime does not understand {name}={shown:?}"),
                    log_tail: String::new(),
                });
            }
        }
        Ok(script)
    }
}

impl Start {
    fn parse(value: &str) -> Option<Start> {
        match value {
            "ready" => Some(Start::Ready),
            "never" => Some(Start::Never),
            _ => value.strip_prefix("exit:")?.parse().ok().map(Start::Exit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fanfare_types::{Contract, FunctionName, RevisionId, Sizing, Timeouts};

    fn read(env: &[(&str, &str)]) -> Result<Script, StartFailure> {
        Script::read(&RevisionSpec {
            id: RevisionId::default(),
            name: FunctionName::new("f").unwrap(),
            runtime: "fake".into(),
            contract: Contract::Fake,
            code: None,
            env: env.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            given: fanfare_types::Given::default(),
            sizing: Sizing::default(),
            timeouts: Timeouts::default(),
        })
    }

    #[test]
    fn environments() {
        assert_eq!(read(&[("PATH", "/bin")]).unwrap(), Script::default());
        let all = read(&[
            ("FAKE_CREATE_DELAY_MS", "7"),
            ("FAKE_FAILURE_RATE", "0.25"),
            ("FAKE_START", "exit:-3"),
            ("FAKE_SAY", "hello"),
            ("FAKE_STUBBORN", ""),
        ]);
        let expected = Script {
            create_delay: Some(Duration::from_millis(7)),
            failure_rate: Some(0.25),
            start: Start::Exit(-3),
            say: Some("hello".into()),
            stubborn: true,
        };
        assert_eq!(all.unwrap(), expected);
        assert_eq!(read(&[("FAKE_START", "never"), ("FAKE_START", "ready")]).unwrap().start, Start::Ready);
        for (name, value) in [
            ("FAKE_CREATE_DELAY_MS", "-1"),
            ("FAKE_FAILURE_RATE", "1.5"),
            ("FAKE_FAILURE_RATE", "NaN"),
            ("FAKE_START", "exit:"),
            ("FAKE_START", "soon"),
        ] {
            let failure = read(&[(name, value)]).unwrap_err();
            assert!(failure.detail.contains(name) && failure.detail.contains(value), "{failure:?}");
        }
    }

    #[test]
    fn fates_are_spread_and_repeatable() {
        let options = FakeOptions {
            create_delay: Duration::from_millis(500),
            jitter: Duration::from_millis(100),
            failure_rate: 0.3,
            seed: 42,
            ..FakeOptions::default()
        };
        let run = |script: Script| -> Vec<Fate> {
            (0..1_000).map(|n| script.fate(&options, Some(SandboxId(n)))).collect()
        };
        let fates = run(Script::default());
        assert_eq!(fates, run(Script::default()));
        let delays: Vec<Duration> = fates.iter().filter_map(|fate| fate.delay).collect();
        assert!(delays.iter().all(|delay| (500..600).contains(&delay.as_millis())));
        // Ten standard deviations of a binomial distribution to either side.
        let early = delays.iter().filter(|delay| delay.as_millis() < 550).count();
        assert!((342..658).contains(&early), "{early}");
        let failed = fates.iter().filter(|fate| fate.exit.is_some()).count();
        assert!((155..445).contains(&failed), "{failed}");
        let never_unlucky = Script { failure_rate: Some(0.0), ..Script::default() };
        assert!(run(never_unlucky).iter().all(|fate| fate.exit.is_none()));
        let fixed = Script { create_delay: Some(Duration::from_millis(7)), ..Script::default() };
        assert!(run(fixed).iter().all(|fate| fate.delay == Some(Duration::from_millis(7))));
        let always = FakeOptions { failure_rate: 1.0, ..options };
        assert_eq!(Script::default().fate(&always, None).exit, None, "a trial start is not left to chance");
    }
}
