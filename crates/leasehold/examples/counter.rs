//! A counter: eight tasks count together, without a lock, and none is lost. Run it with `cargo run -p leasehold --example
//! counter`, on the embedded store, or with a store's URL behind it (`-- memory:`).

use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "file:".to_owned());
    let locks = leasehold::connect(&store).await?;
    // It ends an hour after somebody has made it, however often it is added to.
    let visits = locks.cells().counter("example:visits").ttl(Duration::from_secs(3_600));
    visits.reset().await?;

    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let visits = visits.clone();
            tokio::spawn(async move {
                for _ in 0..100 {
                    visits.add(1).await?;
                }
                Ok::<_, leasehold::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    }

    println!("{} visits", visits.get().await?);
    visits.reset().await?;
    locks.close().await;
    Ok(())
}
