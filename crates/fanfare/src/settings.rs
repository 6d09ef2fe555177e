//! Settings of a function on the command line.

use clap::{Args as ClapArgs, ValueEnum};
use fanfare_api::{
    BalanceName, FunctionDocument, MetricName, PolicyName, ProfileName, Quantity, ScalingDocument,
};
use fanfare_types::limits;

use crate::args::{number, whole};
use crate::exit::Failure;
use crate::given::{FileFlag, SecretFlag};
use crate::suggest;

/// Settings of a function. What is left out keeps its value or its default.
#[derive(ClapArgs, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Settings")]
pub(crate) struct SettingsArgs {
    /// Set an environment variable: NAME=VALUE, or NAME to take it from here; may be repeated.
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Remove an environment variable; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub(crate) unset_env: Vec<String>,
    /// Give it a secret, as the file /run/secrets/FILE or as a variable: NAME[=file:FILE|env:VARIABLE]; may be repeated.
    #[arg(long, value_name = "NAME[=PLACE]")]
    pub(crate) secret: Vec<SecretFlag>,
    /// Take a secret away, by its file or variable; may be repeated.
    #[arg(long, value_name = "PLACE", hide_short_help = true)]
    pub(crate) unset_secret: Vec<String>,
    /// Give it a file at /run/config/PATH with this content; may be repeated.
    #[arg(long, value_name = "PATH=LOCALFILE")]
    pub(crate) file: Vec<FileFlag>,
    /// Take a file of /run/config away; may be repeated.
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    pub(crate) unset_file: Vec<String>,
    /// Most memory of a sandbox, e.g. 256MiB.
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// Reserved memory of a sandbox, e.g. 16MiB.
    #[arg(long, value_name = "SIZE", hide_short_help = true)]
    pub(crate) memory_request: Option<String>,
    /// Most CPUs of a sandbox, e.g. 0.5; 0 for no limit.
    #[arg(long, value_name = "CPUS")]
    pub(crate) cpu: Option<String>,
    /// Reserved CPUs of a sandbox, e.g. 0.01.
    #[arg(long, value_name = "CPUS", hide_short_help = true)]
    pub(crate) cpu_request: Option<String>,
    /// Most processes and threads of a sandbox.
    #[arg(long, value_name = "N", value_parser = whole::<{ limits::PIDS_LIMIT_MIN }, { limits::PIDS_LIMIT_MAX }>, hide_short_help = true)]
    pub(crate) pids: Option<u32>,
    /// Size of a sandbox's private /tmp, e.g. 32MiB [default: 64MiB, and at most half of its memory].
    #[arg(long, value_name = "SIZE", hide_short_help = true)]
    pub(crate) tmp: Option<String>,
    /// Requests that one sandbox serves at once; Python runs one per handler process.
    #[arg(long, value_name = "N", value_parser = whole::<1, { limits::CONCURRENCY_MAX }>)]
    pub(crate) concurrency: Option<u32>,
    /// Handler processes in one sandbox, which share its requests; Python runs one at a time in each.
    #[arg(long, value_name = "N", value_parser = whole::<1, { limits::CONCURRENCY_MAX }>, hide_short_help = true)]
    pub(crate) handler_processes: Option<u32>,
    /// Time from accepted to answered, e.g. 30s.
    #[arg(long, value_name = "DURATION")]
    pub(crate) timeout: Option<String>,
    /// Longest silence of a request in its sandbox, e.g. 10s; 0 for no limit.
    #[arg(long, value_name = "DURATION", hide_short_help = true)]
    pub(crate) idle_timeout: Option<String>,
    /// Time a sandbox has to become ready, e.g. 30s.
    #[arg(long, value_name = "DURATION", hide_short_help = true)]
    pub(crate) start_timeout: Option<String>,
    /// Requests that may wait.
    #[arg(long, value_name = "N", value_parser = whole::<1, { limits::QUEUE_LIMIT_MAX }>, hide_short_help = true)]
    pub(crate) queue_limit: Option<u32>,
    /// Choice among free slots: knative, least_loaded, round_robin, random, ch_rlu, hermod.
    #[arg(long, value_name = "NAME", value_parser = word::<BalanceName>, hide_short_help = true)]
    pub(crate) balance: Option<BalanceName>,
    /// Never fewer sandboxes.
    #[arg(long, value_name = "N", value_parser = whole::<0, { limits::SCALE_MAX }>)]
    pub(crate) min: Option<u32>,
    /// Never more sandboxes.
    #[arg(long, value_name = "N", value_parser = whole::<1, { limits::SCALE_MAX }>)]
    pub(crate) max: Option<u32>,
    /// Always so many sandboxes.
    #[arg(long, value_name = "N", value_parser = whole::<0, { limits::SCALE_MAX }>, conflicts_with_all = ["policy", "profile", "target", "metric"])]
    pub(crate) scale: Option<u32>,
    /// Sandboxes started at registration.
    #[arg(long, value_name = "N", value_parser = whole::<0, { limits::SCALE_MAX }>, hide_short_help = true)]
    pub(crate) initial: Option<u32>,
    /// What decides the scale.
    #[arg(long, value_enum, value_name = "NAME", hide_short_help = true)]
    pub(crate) policy: Option<PolicyArg>,
    /// Whose defaults hold: fanfare, knative or dirigent.
    #[arg(long, value_name = "NAME", value_parser = word::<ProfileName>, hide_short_help = true)]
    pub(crate) profile: Option<ProfileName>,
    /// What is measured: concurrency or rps.
    #[arg(long, value_name = "NAME", value_parser = word::<MetricName>, hide_short_help = true)]
    pub(crate) metric: Option<MetricName>,
    /// What one sandbox should carry.
    #[arg(long, value_name = "NUMBER", value_parser = target, hide_short_help = true)]
    pub(crate) target: Option<f64>,
    /// A lower count takes effect after so long, e.g. 30s.
    #[arg(long, value_name = "DURATION", hide_short_help = true)]
    pub(crate) scale_down_delay: Option<String>,
}

/// Policies without a setting of their own; `fixed` is `--scale N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyArg {
    /// Knative's autoscaler.
    Kpa,
    /// By CPU.
    Hpa,
}

/// What one sandbox should carry, within the API's limits.
pub(crate) fn target(text: &str) -> Result<f64, String> {
    number(text, 0.01, limits::SCALING_FACTOR_MAX)
}

/// A word of the API's vocabulary.
pub(crate) fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    // It says "unknown variant `fair`, expected one of `knative`, …".
    let error = |e: serde::de::value::Error| match e.to_string().split_once("expected ") {
        Some((_, allowed)) => format!("give {}", allowed.replace('`', "")),
        None => e.to_string(),
    };
    T::deserialize(serde::de::value::StrDeserializer::new(text)).map_err(error)
}

impl SettingsArgs {
    /// Writes what is given into `document`.
    ///
    /// # Errors
    /// A variable without a value here or there.
    pub(crate) fn apply(&self, document: &mut FunctionDocument) -> Result<(), Failure> {
        self.apply_env(document)?;
        self.unset_secret.iter().for_each(|place| drop(document.secrets.remove(place)));
        self.secret.iter().for_each(|secret| secret.apply(document));
        self.unset_file.iter().for_each(|path| drop(document.files.remove(path)));
        self.file.iter().try_for_each(|file| file.apply(document))?;
        let text = |given: &Option<String>, field: &mut Option<Quantity>| {
            if let Some(given) = given {
                *field = Some(Quantity::Text(given.clone()));
            }
        };
        text(&self.memory, &mut document.limits.memory_limit);
        text(&self.memory_request, &mut document.limits.memory_request);
        text(&self.cpu, &mut document.limits.cpu_limit);
        text(&self.cpu_request, &mut document.limits.cpu_request);
        text(&self.tmp, &mut document.limits.tmp);
        text(&self.timeout, &mut document.timeouts.request);
        text(&self.start_timeout, &mut document.timeouts.start);
        text(&self.idle_timeout, &mut document.timeouts.idle);
        set(self.pids, &mut document.limits.pids);
        set(self.handler_processes, &mut document.handler_processes);
        set(self.queue_limit, &mut document.queue_limit);
        set(self.balance, &mut document.balance);
        if self.profile.is_some() {
            document.concurrency = None;
        }
        set(self.concurrency, &mut document.concurrency);
        self.apply_scaling(&mut document.scaling);
        text(&self.scale_down_delay, &mut document.scaling.scale_down_delay);
        Ok(())
    }

    /// The same failure in the words of the command line, where the wrong field came from a flag.
    pub(crate) fn name_flags(&self, failure: Failure) -> Failure {
        let field = failure.stated.as_ref().and_then(|stated| stated.field.as_deref());
        if let Some(variable) = field.and_then(|field| field.strip_prefix("env.")) {
            let given = |flag: &String| flag.split('=').next() == Some(variable);
            return match self.env.iter().any(given) {
                true => {
                    let hint = format!("leave out --env {variable}, or give it another name");
                    failure.next(hint)
                }
                false => failure,
            };
        }
        let Some((field, flag)) =
            field.and_then(|field| self.flags().into_iter().find(|(of, _)| *of == field))
        else {
            return failure;
        };
        let what = failure.what.replacen(field, flag, 1);
        let next = match &failure.next {
            Some(meant) if meant.starts_with("did you mean") => meant.clone(),
            _ => format!("give {flag} a value that is allowed"),
        };
        Failure { what, ..failure }.next(next)
    }

    /// The flag of a field, without its dashes.
    pub(crate) fn word_of(field: &str) -> Option<&'static str> {
        let flags = SettingsArgs::default().all_flags();
        flags.iter().find(|(_, of, _)| *of == field).map(|(.., flag)| flag.trim_start_matches('-'))
    }

    /// Fields that flags have set, and those flags.
    fn flags(&self) -> Vec<(&'static str, &'static str)> {
        let given = self.all_flags().into_iter().filter(|(given, ..)| *given);
        given.map(|(_, field, flag)| (field, flag)).collect()
    }

    /// Every flag of a single field: whether it is given, the field, the flag.
    fn all_flags(&self) -> [(bool, &'static str, &'static str); 21] {
        [
            (self.memory.is_some(), "limits.memory_limit", "--memory"),
            (self.memory_request.is_some(), "limits.memory_request", "--memory-request"),
            (self.cpu.is_some(), "limits.cpu_limit", "--cpu"),
            (self.cpu_request.is_some(), "limits.cpu_request", "--cpu-request"),
            (self.pids.is_some(), "limits.pids", "--pids"),
            (self.tmp.is_some(), "limits.tmp", "--tmp"),
            (self.concurrency.is_some(), "concurrency", "--concurrency"),
            (self.handler_processes.is_some(), "handler_processes", "--handler-processes"),
            (self.timeout.is_some(), "timeouts.request", "--timeout"),
            (self.start_timeout.is_some(), "timeouts.start", "--start-timeout"),
            (self.idle_timeout.is_some(), "timeouts.idle", "--idle-timeout"),
            (self.queue_limit.is_some(), "queue_limit", "--queue-limit"),
            (self.balance.is_some(), "balance", "--balance"),
            (self.min.is_some(), "scaling.min", "--min"),
            (self.max.is_some(), "scaling.max", "--max"),
            (self.scale.is_some(), "scaling.count", "--scale"),
            (self.initial.is_some(), "scaling.initial", "--initial"),
            (self.policy.is_some(), "scaling.policy", "--policy"),
            (self.metric.is_some(), "scaling.metric", "--metric"),
            (self.target.is_some(), "scaling.target", "--target"),
            (self.scale_down_delay.is_some(), "scaling.scale_down_delay", "--scale-down-delay"),
        ]
    }

    /// What is to be removed and is not there, one sentence each: a slip, or done already.
    pub(crate) fn not_there(&self, document: &FunctionDocument) -> Vec<String> {
        let kinds: [(&str, &[String], Vec<&str>); 3] = [
            ("--unset-env", &self.unset_env, document.env.0.iter().map(|(name, _)| name.as_str()).collect()),
            ("--unset-secret", &self.unset_secret, document.secrets.keys().map(String::as_str).collect()),
            ("--unset-file", &self.unset_file, document.files.keys().map(String::as_str).collect()),
        ];
        let absent = |(flag, given, there): &(&str, &[String], Vec<&str>)| {
            let missing = given.iter().filter(|name| !there.contains(&name.as_str()));
            let sentence = |name: &String| {
                let meant = suggest::closest(name, there.iter().copied());
                let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
                format!("{flag} {name}: {} has none of that name{meant}", document.name)
            };
            missing.map(sentence).collect::<Vec<_>>()
        };
        kinds.iter().flat_map(absent).collect()
    }

    fn apply_env(&self, document: &mut FunctionDocument) -> Result<(), Failure> {
        for name in &self.unset_env {
            document.env.unset(name);
        }
        for given in &self.env {
            let name = given.split_once('=').map_or(given.as_str(), |(name, _)| name);
            if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
                let what = format!("--env: {name:?} is no name of a variable");
                return Err(Failure::usage(what).next("give each variable by itself: --env A=1 --env B=2"));
            }
            match given.split_once('=') {
                Some((name, value)) => document.env.set(name, value),
                None => {
                    let value = std::env::var(given).map_err(|_| {
                        Failure::usage(format!("--env {given}: there is no such variable here"))
                            .next(format!("give its value: --env {given}=VALUE"))
                    })?;
                    document.env.set(given, &value);
                }
            }
        }
        Ok(())
    }

    /// Another policy or profile drops the settings of the one before, which mean nothing to it.
    fn apply_scaling(&self, scaling: &mut ScalingDocument) {
        let policy = match (self.policy, self.scale) {
            (_, Some(_)) => Some(PolicyName::Fixed),
            (Some(PolicyArg::Kpa), None) => Some(PolicyName::Kpa),
            (Some(PolicyArg::Hpa), None) => Some(PolicyName::Hpa),
            (None, None) => None,
        };
        if self.profile.is_some() {
            *scaling = ScalingDocument { profile: self.profile, policy, ..ScalingDocument::default() };
        } else if policy.is_some() && policy != scaling.policy {
            *scaling = ScalingDocument {
                policy,
                min: scaling.min,
                max: scaling.max,
                initial: scaling.initial,
                activation: scaling.activation,
                scale_down_delay: scaling.scale_down_delay.take(),
                on_demand: scaling.on_demand,
                ..ScalingDocument::default()
            };
        }
        set(self.scale, &mut scaling.count);
        set(self.min, &mut scaling.min);
        set(self.max, &mut scaling.max);
        set(self.initial, &mut scaling.initial);
        set(self.metric, &mut scaling.metric);
        set(self.target, &mut scaling.target);
    }
}

fn set<T: Copy>(given: Option<T>, field: &mut Option<T>) {
    if given.is_some() {
        *field = given;
    }
}

#[cfg(test)]
mod tests {
    use fanfare_api::HandlerDocument;
    use fanfare_types::{FunctionSpec, ScalingPolicy};

    use super::*;

    fn registered() -> FunctionDocument {
        let mut document = FunctionDocument::new("f", HandlerDocument::Fake {});
        document.env.set("A", "1");
        document.env.set("B", "2");
        FunctionDocument::from(&FunctionSpec::try_from(document).unwrap())
    }

    fn applied(settings: &SettingsArgs) -> FunctionSpec {
        let mut document = registered();
        settings.apply(&mut document).unwrap();
        FunctionSpec::try_from(document).unwrap()
    }

    #[test]
    fn nothing_given_changes_nothing() {
        assert_eq!(applied(&SettingsArgs::default()), FunctionSpec::try_from(registered()).unwrap());
    }

    #[test]
    fn variables_are_set_and_removed() {
        let settings = SettingsArgs {
            env: vec!["C=x=y".into(), "A=9".into()],
            unset_env: vec!["B".into()],
            ..SettingsArgs::default()
        };
        let expected = [("A", "9"), ("C", "x=y")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(applied(&settings).env, expected);
        for slip in ["A B=1", "A\tB", " A=1"] {
            let wrong = SettingsArgs { env: vec![slip.into()], ..SettingsArgs::default() };
            let failure = wrong.apply(&mut registered()).unwrap_err();
            assert!(failure.what.contains("no name of a variable"), "{slip}: {failure}");
        }
        let removed = SettingsArgs {
            unset_env: vec!["B".into(), "AA".into(), "TYPO".into()],
            ..SettingsArgs::default()
        };
        let mut document = registered();
        document.env.set("AAA", "3");
        let expected = [
            "--unset-env AA: f has none of that name; did you mean AAA?",
            "--unset-env TYPO: f has none of that name",
        ];
        assert_eq!(removed.not_there(&document), expected);
        let absent = SettingsArgs { env: vec!["FANFARE_NO_SUCH_VARIABLE".into()], ..SettingsArgs::default() };
        assert!(absent.apply(&mut registered()).is_err());
    }

    #[test]
    fn another_policy_drops_the_settings_of_the_one_before() {
        let hpa =
            applied(&SettingsArgs { policy: Some(PolicyArg::Hpa), max: Some(9), ..SettingsArgs::default() });
        assert!(matches!(hpa.scaling.policy, ScalingPolicy::Hpa(_)));
        assert_eq!(hpa.scaling.max, 9);
        let fixed = applied(&SettingsArgs { scale: Some(3), ..SettingsArgs::default() });
        assert_eq!(fixed.scaling.policy, ScalingPolicy::Fixed(3));
        let knative =
            applied(&SettingsArgs { profile: Some(ProfileName::Knative), ..SettingsArgs::default() });
        assert_eq!((knative.sizing.concurrency, knative.scaling.initial), (1_000, 1));
    }

    #[test]
    fn words_are_the_apis() {
        assert_eq!(word::<BalanceName>("ch_rlu"), Ok(BalanceName::ChRlu));
        let told = word::<BalanceName>("fair").unwrap_err();
        assert_eq!(told, "give one of knative, least_loaded, round_robin, random, ch_rlu, hermod");
    }
}
