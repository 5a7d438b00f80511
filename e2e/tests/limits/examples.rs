//! Every manifest in `examples/` runs as it is.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::{Phase, Reason};
use cloche_e2e::{Agent, Options, image, trial};

use crate::scene::{LIMIT, output};
use crate::verdict::Verdict;

#[tokio::test]
async fn the_examples_run_as_they_are() {
    let options = Options::default().images(image::prepared().unwrap());
    trial::run(options, async |agent| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
        let mut names = Vec::new();
        for entry in folder.read_dir().context("list the examples")? {
            let path = entry.context("list the examples")?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "yaml")
            {
                let file = path.file_name().context("its name")?;
                std::fs::copy(&path, agent.manifests().join(file)).context("copy an example")?;
                let name = path.file_stem().context("its name")?;
                names.push(name.to_string_lossy().into_owned());
            }
        }
        names.sort();
        ensure!(
            names == ["hello", "limits", "primes", "restricted"],
            "{names:?}"
        );
        Verdict::new(Reason::Completed)
            .wait(agent, "primes")
            .await?;
        for name in ["hello", "limits", "restricted"] {
            agent.wait_running(name, LIMIT).await?;
        }
        restricted(agent).await
    })
    .await
    .unwrap();
}

async fn restricted(agent: &Agent) -> Result<()> {
    let phase = agent.wait_running("restricted", LIMIT).await?.0["status"]["phase"].clone();
    ensure!(phase == Phase::Running.as_str());
    for (line, wanted) in [
        ("id -u; id -g; pwd", "1000\n1000\n/work"),
        (
            "python3 -c 'open(\"/work/x\", \"w\").write(\"y\"); print(open(\"/work/x\").read())'",
            "y",
        ),
        ("(: > /var/x) 2>/dev/null || echo refused", "refused"),
        (
            "grep -E '^Cap(Eff|Bnd)' /proc/self/status | cut -f2 | sort -u",
            "0000000000000000",
        ),
        (
            "head -c 80000000 /dev/zero > /work/big 2>/dev/null || echo full",
            "full",
        ),
    ] {
        let got = output(agent, "restricted", line).await?;
        ensure!(got == wanted, "{line}: {got:?} is not {wanted:?}");
    }
    Ok(())
}
