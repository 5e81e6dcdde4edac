//! Rate limits: five mails a second, whoever sends them. Run it with `cargo run -p leasehold --example rate`, on the embedded
//! store, in several terminals at once; or with a store's URL behind it (`-- memory:`).

use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "file:".to_owned());
    let locks = leasehold::connect(&store).await?;
    let mails = locks.rate_limit("mails").max(5).per(Duration::from_secs(1));

    // As many as there are now, and when to come again.
    loop {
        let taken = mails.take(1).await?;
        if !taken.allowed {
            println!("no more for now; the next in {:?}", taken.retry_after);
            break;
        }
        println!("sent; {} more at once", taken.remaining);
    }

    // Or in turn: these come as they may.
    let sending: Vec<_> = (1..=8)
        .map(|number| {
            let mails = mails.clone();
            tokio::spawn(async move {
                mails.wait(1).await?;
                println!("mail {number} sent");
                Ok::<_, leasehold::Error>(())
            })
        })
        .collect();
    for task in sending {
        task.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    }

    // A heavy one waits until there is enough of it; at most so long.
    let taken = mails.wait_for(5, Duration::from_secs(3)).await?;
    println!("five at once: {}", if taken.allowed { "sent" } else { "not in time" });

    locks.close().await;
    Ok(())
}
