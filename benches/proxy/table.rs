//! What is printed: medians over rounds, and how the rounds are spread.

use std::collections::BTreeMap;

use crate::{
    contestant::Contestant,
    load::{Mode, Sample},
};

/// Prints one mode. Ratios are taken round by round, to the bare proxy in the same round.
pub(crate) fn print(mode: Mode, contestants: &[Contestant], samples: &BTreeMap<usize, Vec<Sample>>) {
    println!("\n{}", mode.name());
    println!(
        "{:<20}{:>12}{:>20}{:>14}{:>10}{:>10}",
        "", "CPU us", "x bare (quartiles)", "requests/s", "p50 ms", "p99 ms"
    );
    let bare = samples.get(&BARE);
    for (which, samples) in samples {
        let median = |of: &dyn Fn(&Sample) -> f64| quartiles(samples.iter().map(of).collect())[1];
        let cpu: Vec<f64> = samples.iter().filter_map(|sample| sample.cpu_seconds).collect();
        let ratios: Vec<f64> = bare
            .into_iter()
            .flatten()
            .zip(samples)
            .filter_map(|(bare, sample)| Some(sample.cpu_seconds? / bare.cpu_seconds.filter(|cpu| *cpu > 0.0)?))
            .collect();
        let (cpu, ratio) = if cpu.is_empty() {
            ("-".to_owned(), "-".to_owned())
        } else {
            let [low, middle, high] = quartiles(ratios);
            (format!("{:.1}", quartiles(cpu)[1] * 1e6), format!("{middle:.2} ({low:.2}-{high:.2})"))
        };
        println!(
            "{:<20}{cpu:>12}{ratio:>20}{:>14.0}{:>10.2}{:>10.2}",
            contestants[*which].name,
            median(&|sample| sample.requests_per_second),
            median(&|sample| part(&sample.latencies, 0.5) * 1e3),
            median(&|sample| part(&sample.latencies, 0.99) * 1e3),
        );
    }
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [0.25, 0.5, 0.75].map(|share| part(&values, share))
}

/// The value below which that share of the sorted ones lies; zero where there is none.
fn part(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    sorted[(share * last as f64).round() as usize]
}

/// The contestant that others are compared to.
const BARE: usize = 1;
