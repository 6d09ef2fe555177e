//! `fanfare webhook`.

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use fanfare_types::{FunctionName, SecretName};

use super::secrets::secret_name;
use super::{OutputArgs, function_name};
use crate::complete::{function_names, secret_names};

/// Let other services call functions: at /webhook/NAME, by a secret that they share with you.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare secret set github < key.txt
  fanfare webhook set pushes build --verify github --secret github
  fanfare webhook describe pushes")]
pub(crate) struct WebhookArgs {
    #[command(subcommand)]
    pub(crate) command: WebhookCommand,
}

/// What to do with webhooks.
#[derive(Debug, Subcommand)]
pub(crate) enum WebhookCommand {
    /// Set one: which function is called, and how senders show that they know the secret.
    Set(WebhookSetArgs),
    /// List them.
    #[command(visible_alias = "ls")]
    List(WebhookListArgs),
    /// Show one: its URL, and a curl command that signs.
    Describe(WebhookNameArgs),
    /// Delete some; what they have called goes on.
    #[command(visible_alias = "rm")]
    Delete(WebhookDeleteArgs),
}

/// `fanfare webhook set`.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare webhook set pushes build --verify github --secret github
  fanfare webhook set payments book --verify stripe --secret stripe --tolerance 2m
  fanfare webhook set ask answer --verify token --secret ask --wait

Senders are answered 202 as soon as the call is durable; one that is sent again under the same X-GitHub-Delivery or
webhook-id is the same call. With --wait they get the function's answer.")]
pub(crate) struct WebhookSetArgs {
    /// The webhook's name.
    #[arg(value_parser = function_name)]
    pub(crate) name: FunctionName,
    /// The function that is called.
    #[arg(value_parser = function_name, add = function_names())]
    pub(crate) function: FunctionName,
    /// How a sender shows that it knows the secret.
    #[arg(long, value_enum)]
    pub(crate) verify: Verify,
    /// The secret's name; see `fanfare secret`.
    #[arg(long, value_name = "NAME", value_parser = secret_name, add = secret_names())]
    pub(crate) secret: SecretName,
    /// Have the sender wait for the function's answer.
    #[arg(long)]
    pub(crate) wait: bool,
    /// How far the time of a signature may be from now, e.g. 2m [default: 5m].
    #[arg(long, value_name = "DURATION")]
    pub(crate) tolerance: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How a sender shows that it knows the secret.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Verify {
    /// X-Hub-Signature-256, as GitHub.
    Github,
    /// Stripe-Signature.
    Stripe,
    /// webhook-id, webhook-timestamp and webhook-signature, as Standard Webhooks.
    Standard,
    /// The secret itself: Authorization: Bearer, or ?token= in the URL.
    Token,
}

/// `fanfare webhook list`.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare webhook list
  fanfare webhook list -o url")]
pub(crate) struct WebhookListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// A webhook by its name.
#[derive(ClapArgs, Debug)]
pub(crate) struct WebhookNameArgs {
    /// The webhook.
    #[arg(value_parser = function_name)]
    pub(crate) name: FunctionName,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `fanfare webhook delete`.
#[derive(ClapArgs, Debug)]
pub(crate) struct WebhookDeleteArgs {
    /// The webhooks.
    #[arg(required = true, value_parser = function_name)]
    pub(crate) names: Vec<FunctionName>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
