//! Permits: six uploads, at most two at a time, and a heavy one that takes both. Run it with
//! `cargo run -p leasehold --example semaphore`, on the embedded store, or with a store's URL behind it (`-- memory:`).

use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "file:".to_owned());
    let locks = leasehold::connect(&store).await?;
    let uploads = locks.semaphore("uploads", 2);

    let running: Vec<_> = (1..=6)
        .map(|number| {
            let uploads = uploads.clone();
            tokio::spawn(async move {
                // Every third is heavy, and waits until nobody else is at it.
                let permits = if number % 3 == 0 { 2 } else { 1 };
                let lease = uploads.acquire_many(permits).await?;
                println!("upload {number} began, with {permits} of 2 permits and fence {}", lease.fence());
                tokio::time::sleep(Duration::from_millis(100)).await;
                lease.release().await
            })
        })
        .collect();
    for task in running {
        task.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    }

    locks.close().await;
    Ok(())
}
