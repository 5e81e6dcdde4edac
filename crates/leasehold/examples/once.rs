//! Once in a period: three machines start the same job, one runs it, and it is not run again before the period is over. Run it
//! with `cargo run -p leasehold --example once`, on the embedded store, or with a store's URL behind it (`-- memory:`).

use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "file:".to_owned());
    let locks = leasehold::connect(&store).await?;

    // For a daily job it would be 23 hours: less than the time between two starts, by more than clocks differ.
    let nightly = locks.once("nightly").per(Duration::from_secs(2)).at_most_for(Duration::from_secs(60));
    for machine in ["web-1", "web-2", "web-3"] {
        let ran = nightly.clone().owner(machine).run(async |proof| proof.fence()).await?;
        match ran {
            Some(fence) => println!("{machine}: ran, with fence {fence}"),
            None => println!("{machine}: nothing to do"),
        }
    }

    // The name is kept for what is left of the period, also when this process has gone.
    while nightly.run(async |_| ()).await?.is_none() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("the next period has begun");

    // A run that failed may give its turn back, so that somebody else tries.
    let weekly = locks.once("weekly").per(Duration::from_secs(3600));
    if let Some(turn) = weekly.take().await? {
        turn.give_back().await?;
        println!("given back: {}", weekly.take().await?.is_some());
    }

    locks.close().await;
    Ok(())
}
