//! Who asks when: the same for the same seed.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::args::Args;

/// For every instance, when its requests come, in microseconds from the start, in order.
pub(crate) type Plan = Vec<Vec<u64>>;

/// `load` times what `rate` (units per second) lets through: three quarters one by one, at any time, over the instances as
/// Zipf's law has it; a quarter in bursts, each at one instance, any of them.
pub(crate) fn plan(args: &Args, rate: f64) -> Plan {
    let mut random = StdRng::seed_from_u64(args.seed);
    let length = args.seconds * 1_000_000;
    let requests = ((args.load * rate * args.seconds as f64).round() as usize).max(1);
    let bursts = if args.burst > 1 { requests / 4 / args.burst } else { 0 };
    let shares = cumulated_shares(args.instances, args.zipf);

    let mut plan = vec![Vec::new(); args.instances];
    for _ in 0..bursts {
        let (instance, at) = (random.random_range(0..args.instances), random.random_range(0..length));
        plan[instance].extend(std::iter::repeat_n(at, args.burst));
    }
    for _ in bursts * args.burst..requests {
        let place = random.random_range(0.0..1.0);
        let instance = shares.partition_point(|upto| *upto <= place).min(args.instances - 1);
        plan[instance].push(random.random_range(0..length));
    }
    plan.iter_mut().for_each(|arrivals| arrivals.sort_unstable());
    plan
}

fn cumulated_shares(instances: usize, exponent: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=instances).map(|rank| (rank as f64).powf(-exponent)).collect();
    let whole: f64 = weights.iter().sum();
    weights
        .iter()
        .scan(0.0, |upto, weight| {
            *upto += weight / whole;
            Some(*upto)
        })
        .collect()
}
