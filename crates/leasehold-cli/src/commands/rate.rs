//! `rate`: only so often, whoever asks and wherever; then becomes the command.

use std::process::Command;
use std::time::Duration;

use leasehold::{Clock, Locks, Taken, cells};
use serde_json::{Value, json};

use super::exec;
use crate::args::{Algorithm, Output, Rate};
use crate::duration::short;
use crate::exit::Failure;
use crate::output::Logger;
use crate::progress::{Progress, so_far};
use crate::{name, print};

/// Waits until it is let through.
pub(crate) async fn rate(locks: &Locks, args: &Rate, output: Output, voice: Logger) -> Result<u8, Failure> {
    let name = name(&args.name)?;
    if args.command.first().is_some_and(|program| program.is_empty()) {
        return Err(Failure::usage("what is to be run? Write the command after `--`"));
    }
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
        match args.wait {
            _ if args.nonblock => limit.take(args.weight).await,
            Some(wait) => limit.wait_for(args.weight, wait).await,
            None => limit.wait_for(args.weight, Duration::MAX).await,
        }
    };
    let describe = |waited| {
        let (max, per) = (args.max, short(args.per));
        std::future::ready(format!("waiting for {name}: it lets through {max} in {per}{}", so_far(waited)))
    };
    let taken = Progress::new(voice).during(&Clock::system()?, taking, describe).await?;
    let told = json!({
        "name": name.as_str(),
        "allowed": taken.allowed,
        "remaining": taken.remaining,
        "retry_after_ms": ms(taken.retry_after),
        "reset_after_ms": ms(taken.reset_after),
    });
    if !taken.allowed {
        return Err(refused(args, &taken, told, output, voice));
    }
    voice.detail(format_args!("{name} lets it through; {} more at this moment", taken.remaining));
    // Standard output is the command's alone.
    if output == Output::Json && !has_command(args) {
        print(&format!("{told}\n"))?;
    }
    Ok(0)
}

/// What comes after: the command, in the place of this one. Nothing is held that would have to be given back.
pub(crate) fn follow(args: &Rate) -> u8 {
    let mut command = match (&args.string, args.command.split_first()) {
        (Some(string), _) => {
            let mut command = Command::new(exec::shell());
            command.arg("-c").arg(string);
            command
        }
        (None, Some((program, rest))) => {
            let mut command = Command::new(program);
            command.args(rest);
            command
        }
        (None, None) => return 0,
    };
    exec::without_secrets(&mut command);
    exec::replaced_by(&mut command)
}

fn has_command(args: &Rate) -> bool {
    args.string.is_some() || !args.command.is_empty()
}

fn refused(args: &Rate, taken: &Taken, mut told: Value, output: Output, voice: Logger) -> Failure {
    let (name, code) = (args.name.to_string_lossy(), args.conflict_exit_code);
    let message = format!(
        "`{name}` lets through {} in {}, and not now; come back in {}, or wait for it (longer) with --wait",
        args.max,
        short(args.per),
        // Whoever comes back a little early has come for nothing.
        short(taken.retry_after + Duration::from_micros(999)),
    );
    if output == Output::Text {
        return Failure { kind: "limited", code, message };
    }
    voice.error(&message);
    told["error"] = json!({ "kind": "limited", "code": code, "message": message });
    match print(&format!("{told}\n")) {
        Ok(()) => Failure { kind: "limited", code, message: String::new() },
        Err(failure) => failure,
    }
}

/// Rounded up: nobody is to come too early.
fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
