//! What a request costs through ota-pacer, against a proxy without any feature and against no proxy.
//!
//! `make bench` runs it. Everything is measured in one run on one machine, in interleaved rounds, so that what else the
//! machine does strikes all alike; compare ratios, not times. The steady figure is the proxy's own CPU time per request,
//! from `/proc`; requests per second and latencies share the machine with the load and the OTA, and are for the eye. The
//! bare proxy runs twice, as a check of the method: it must cost 1.0 times itself.

mod client;
mod contestant;
mod load;
mod table;

use std::{collections::BTreeMap, time::Duration};

use crate::{
    contestant::{Contestant, Scene},
    load::{Mode, Sample},
};

fn main() -> anyhow::Result<()> {
    // cargo passes `--bench`, which says nothing here.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let scene = Scene::set()?;
    for mode in Mode::ALL {
        let mut samples: BTreeMap<usize, Vec<Sample>> = BTreeMap::new();
        for round in 0..=ROUNDS {
            for place in 0..scene.contestants.len() {
                let which = turn(round, place, scene.contestants.len());
                let contestant: &Contestant = &scene.contestants[which];
                let sample = runtime.block_on(load::run(contestant, &scene.ota, mode, LENGTH))?;
                // The first round warms up.
                if round > 0 {
                    samples.entry(which).or_default().push(sample);
                }
            }
        }
        table::print(mode, &scene.contestants, &samples);
    }
    Ok(())
}

/// Another one goes first in each round, and every other round goes backwards: nobody always follows the same one.
fn turn(round: usize, place: usize, contestants: usize) -> usize {
    let place = if round.is_multiple_of(2) { place } else { contestants - 1 - place };
    (place + round) % contestants
}

const ROUNDS: usize = 10;
const LENGTH: Duration = Duration::from_millis(800);
