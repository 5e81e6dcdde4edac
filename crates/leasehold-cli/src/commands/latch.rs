//! `latch`: counts a latch down, or waits until it is open.

use std::time::Duration;

use leasehold::{Clock, Locks};
use serde_json::json;

use crate::args::{Latch, LatchOf};
use crate::duration::short;
use crate::exit::{Failure, Kind};
use crate::name;
use crate::output::Answer;
use crate::progress::{Progress, so_far};

pub(crate) async fn latch(locks: &Locks, args: &Latch) -> Result<Answer, Failure> {
    let latch = |of: &LatchOf| Ok::<_, Failure>(locks.latch(name(&of.name)?, of.count));
    match args {
        Latch::Down { of, id: Some(id) } => state(of, latch(of)?.count_down_as(id).await?),
        Latch::Down { of, id: None } => state(of, latch(of)?.count_down().await?),
        Latch::Show { of } => state(of, latch(of)?.missing().await?),
        Latch::Wait { of, wait, nonblock } => {
            let latch = latch(of)?;
            let at_most = if *nonblock { Duration::ZERO } else { wait.unwrap_or(Duration::MAX) };
            let describe = async |waited: Duration| {
                let missing = latch.missing().await.map_or_else(|_| "some".to_owned(), |it| it.to_string());
                let name = of.name.to_string_lossy();
                format!("waiting for {name}: {missing} of {} missing{}", of.count, so_far(waited))
            };
            match Progress::new().during(&Clock::system()?, latch.wait_for(at_most), describe).await? {
                true => Ok(state(of, 0)?.without_text()),
                false => Err(still_closed(of, latch.missing().await?, at_most)),
            }
        }
        Latch::Reset { name: given } => {
            let name = name(given)?;
            locks.latch(name.clone(), 1).reset().await?;
            let object = json!({ "name": name.as_str(), "reset": true });
            Ok(Answer::line(object, format_args!("{name} is closed, and nobody has counted")))
        }
    }
}

fn state(of: &LatchOf, missing: u32) -> Result<Answer, Failure> {
    let name = name(&of.name)?;
    let (count, open) = (of.count, missing == 0);
    let object = json!({ "name": name.as_str(), "count": count, "missing": missing, "open": open });
    Ok(match open {
        true => Answer::line(object, format_args!("{name} is open")),
        false => Answer::line(object, format_args!("{name} is closed: {missing} of {count} missing")),
    })
}

fn still_closed(of: &LatchOf, missing: u32, waited: Duration) -> Failure {
    let name = of.name.to_string_lossy();
    let waited = if waited.is_zero() { String::new() } else { format!("; waited {}", short(waited)) };
    let message = format!("`{name}` is closed: {missing} of {} missing{waited}", of.count);
    Failure::new(Kind::Closed, message)
}
