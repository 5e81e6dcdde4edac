//! `rate`: waits until a rate limit admits this process, which then becomes the command.

use std::process::Command;
use std::time::Duration;

use leasehold::{Clock, Locks, cells};
use serde_json::json;

use super::exec;
use crate::args::{Algorithm, Rate};
use crate::duration::short;
use crate::exit::{Failure, Kind};
use crate::output::Answer;
use crate::progress::{Progress, so_far};
use crate::{log, name};

pub(crate) async fn rate(locks: &Locks, args: &Rate) -> Result<Answer, Failure> {
    let name = name(&args.name)?;
    let has_command = args.program.parts()?.is_some();
    let algorithm = match (args.algorithm, args.burst) {
        (Algorithm::Sliding, None) => cells::rate::Algorithm::SlidingWindow,
        (Algorithm::Fixed, None) => cells::rate::Algorithm::FixedWindow,
        (Algorithm::Gcra, burst) => cells::rate::Algorithm::Gcra { burst: burst.unwrap_or(1) },
        (_, Some(_)) => {
            return Err(Failure::usage("--burst is for --algorithm gcra; a window lets through MAX at once"));
        }
    };
    let limit = locks.rate_limit(name.clone()).max(args.max).per(args.per).algorithm(algorithm);
    let taking = async {
        match args.waiting.nonblock {
            true => limit.take(args.weight).await,
            false => limit.wait_for(args.weight, args.waiting.limit()).await,
        }
    };
    let describe = |waited| {
        let (max, per) = (args.max, short(args.per));
        std::future::ready(format!("waiting for {name}: it lets through {max} in {per}{}", so_far(waited)))
    };
    let taken = Progress::new().during(&Clock::system()?, taking, describe).await?;
    let object = json!({
        "name": name.as_str(),
        "allowed": taken.allowed,
        "remaining": taken.remaining,
        "retry_after_ms": ms(taken.retry_after),
        "reset_after_ms": ms(taken.reset_after),
    });
    if !taken.allowed {
        let message = format!(
            "`{name}` lets through {} in {}, and not now; come back in {}, or wait for it (longer) with --wait",
            args.max,
            short(args.per),
            // Rounded up: a retry that comes too early is refused again.
            short(taken.retry_after + Duration::from_micros(999)),
        );
        let code = args.waiting.conflict_exit_code;
        return Err(Failure { code, details: object, ..Failure::new(Kind::Limited, message) });
    }
    log::debug(format_args!("{name} lets it through; {} more at this moment", taken.remaining));
    // With a command, standard output belongs to that.
    Ok(if has_command { Answer::default() } else { Answer::new(object, "") })
}

/// Replaces this process by the command, if any: a rate limit has nothing to release.
pub(crate) fn follow(args: &Rate) -> Result<u8, Failure> {
    let Some((program, program_args)) = args.program.parts()? else { return Ok(0) };
    let mut command = Command::new(program);
    command.args(program_args);
    exec::without_secrets(&mut command);
    Ok(exec::replaced_by(&mut command))
}

/// Rounded up, so that a client does not retry too early.
fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
