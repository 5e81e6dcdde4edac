//! `latch`: counts a latch down, or waits until it is open.

use std::time::Duration;

use leasehold::{Clock, Locks};
use serde_json::json;

use crate::args::{Latch, LatchOf, Output};
use crate::duration::short;
use crate::exit::{Failure, Kind};
use crate::output::Logger;
use crate::progress::{Progress, so_far};
use crate::{name, print_answer};

pub(crate) async fn latch(
    locks: &Locks,
    asked: &Latch,
    output: Output,
    logger: Logger,
) -> Result<u8, Failure> {
    match asked {
        Latch::Down { of, id } => {
            let latch = locks.latch(name(&of.name)?, of.count);
            let missing = match id {
                Some(id) => latch.count_down_as(id).await?,
                None => latch.count_down().await?,
            };
            print_state(of, missing, output)?;
        }
        Latch::Show { of } => {
            print_state(of, locks.latch(name(&of.name)?, of.count).missing().await?, output)?
        }
        Latch::Wait { of, wait, nonblock } => {
            let latch = locks.latch(name(&of.name)?, of.count);
            let at_most = if *nonblock { Duration::ZERO } else { wait.unwrap_or(Duration::MAX) };
            let describe = async |waited: Duration| {
                let missing = latch.missing().await.map_or_else(|_| "some".to_owned(), |it| it.to_string());
                let name = of.name.to_string_lossy();
                format!("waiting for {name}: {missing} of {} missing{}", of.count, so_far(waited))
            };
            if !Progress::new(logger).during(&Clock::system()?, latch.wait_for(at_most), describe).await? {
                return Err(still_closed(of, latch.missing().await?, at_most));
            }
            if output == Output::Json {
                print_state(of, 0, output)?;
            }
        }
        Latch::Reset { name: given } => {
            let name = name(given)?;
            locks.latch(name.clone(), 1).reset().await?;
            let object = json!({ "name": name.as_str(), "reset": true });
            print_answer(output, &object, format_args!("{name} is closed, and nobody has counted"))?;
        }
    }
    Ok(0)
}

fn print_state(of: &LatchOf, missing: u32, output: Output) -> Result<(), Failure> {
    let name = name(&of.name)?;
    let object =
        json!({ "name": name.as_str(), "count": of.count, "missing": missing, "open": missing == 0 });
    let text = match missing {
        0 => format!("{name} is open"),
        missing => format!("{name} is closed: {missing} of {} missing", of.count),
    };
    print_answer(output, &object, text)
}

fn still_closed(of: &LatchOf, missing: u32, waited: Duration) -> Failure {
    let name = of.name.to_string_lossy();
    let waited = if waited.is_zero() { String::new() } else { format!("; waited {}", short(waited)) };
    let message = format!("`{name}` is closed: {missing} of {} missing{waited}", of.count);
    Failure::new(Kind::Closed, message)
}
