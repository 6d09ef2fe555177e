//! The platform as a user meets it: real processes, real sandboxes, real clients, in both arrangements.
//!
//! Needs root; without it every test says so and passes.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod asynchronous;
mod cases;
mod cluster;
mod continuity;
mod crashes;
mod dirigent;
mod emulation;
mod explain;
mod figures;
mod limits;
mod load;
mod logs;
mod replays;
mod revisions;
mod scaling;
mod secrets;
mod serving;
mod slots;
mod streaming;

/// Makes one test per arrangement from an async function that takes a running cluster and gives it back.
macro_rules! in_both_arrangements {
    ($($name:ident),* $(,)?) => {
        mod together {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                if crate::cluster::root() {
                    let cluster = crate::cluster::Cluster::start(crate::cluster::Arrangement::Together).await;
                    super::$name(cluster).await.shut_down();
                }
            })*
        }
        mod apart {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                if crate::cluster::root() {
                    let apart = crate::cluster::Arrangement::Apart { data_planes: 1 };
                    let cluster = crate::cluster::Cluster::start(apart).await;
                    super::$name(cluster).await.shut_down();
                }
            })*
        }
    };
}
pub(crate) use in_both_arrangements;
