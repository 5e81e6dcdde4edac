//! A latch: three workers get ready, and whoever needs all of them waits. Run it with `cargo run -p leasehold --example latch`,
//! on the embedded store, or with a store's URL behind it (`-- memory:`).

use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "file:".to_owned());
    let locks = leasehold::connect(&store).await?;
    let ready = locks.latch("workers:ready", 3);
    ready.reset().await?;

    let workers: Vec<_> = (1..=3)
        .map(|number| {
            let ready = ready.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(100 * number)).await;
                // Under a name of its own, a worker that is started again counts once.
                let missing = ready.count_down_as(format!("worker-{number}")).await?;
                println!("worker {number} is ready; {missing} missing");
                Ok::<_, leasehold::Error>(())
            })
        })
        .collect();

    ready.wait().await?;
    println!("all are ready");
    for task in workers {
        task.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    }

    ready.reset().await?;
    locks.close().await;
    Ok(())
}
