"""A question of your own: what do two models say, and what does one say with the other's thoughts?

Question: where in the network does an answer live?
Command:  python -m experiments.by_hand.hooks --question "Where was … born?"
Takes:    seconds on a CPU. Prints full's answer, the source's, full's with the source's last-token
          residual patched in at each layer, and full's with one direction removed: the difference
          of the two streams, and a random one of the same kind as a control.
"""

import click
import torch

import lensaudit as la


@click.command()
@click.option("--question", prompt="Question")
@click.option("--prefix", default="", help="Beginning of the answer to force.")
@click.option("--full", default="demo/full", show_default=True)
@click.option("--source", default="demo/idknll", show_default=True)
@click.option("--layer", type=int, default=8, show_default=True, help="Where to remove directions.")
@click.option("--max-new-tokens", type=int, default=20, show_default=True)
def main(question, prefix, full, source, layer, max_new_tokens):
    models = {"full": la.load_model(full), "source": la.load_model(source)}
    prompt = f"Question: {question}\nAnswer: {prefix}".rstrip(" ")

    for name, model in models.items():
        plain = la.patched_generation(
            model, model, prompt, layers=[], max_new_tokens=max_new_tokens
        )
        click.echo(f"{name:>8}: {plain[0].text.strip()!r}")

    click.echo("full, with the source's last-token residual at a layer:")
    for said in la.patched_generation(
        models["full"], models["source"], prompt, max_new_tokens=max_new_tokens
    )[1:]:
        click.echo(f"{said.layer:>8}: {said.text.strip()!r}")

    # a direction is a hypothesis: its control is a random one of the same kind
    tokens = torch.tensor([models["full"].tokenizer(prompt)["input_ids"]])
    last = {name: la.residuals(m, tokens)[0][0, layer, -1] for name, m in models.items()}
    generator = torch.Generator().manual_seed(0)
    directions = {
        "difference": last["full"] - last["source"],
        "random": torch.randn(len(last["full"]), generator=generator),
    }
    plain = la.logits_of(models["full"], tokens)[0, -1].log_softmax(-1)
    token = int(plain.argmax())
    word = models["full"].tokenizer.decode([token])
    click.echo(f"log-prob of full's next token {word!r}, nats: {float(plain[token]):.3f}")
    for name, direction in directions.items():
        with la.intervening(models["full"], {layer: la.project_out(direction)}):
            edited = la.logits_of(models["full"], tokens)[0, -1].log_softmax(-1)
        click.echo(f"  without the {name} direction at layer {layer}: {float(edited[token]):.3f}")


if __name__ == "__main__":
    main()
