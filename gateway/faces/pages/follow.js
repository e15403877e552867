/** Keeps the end of a growing conversation in sight, unless its reader has scrolled away. */

const NEAR_PX = 56;

export class Follower {
  #scroller;
  #button;
  #following = true;

  /** @param {Element} scroller  @param {HTMLButtonElement} button leads back to the end */
  constructor(scroller, button) {
    this.#scroller = scroller;
    this.#button = button;
    scroller.addEventListener("scroll", () => this.#look(), { passive: true });
    button.addEventListener("click", () => this.toEnd());
  }

  /** Something was appended. */
  grown() {
    if (this.#following) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    else this.#button.hidden = false;
  }

  toEnd() {
    this.#following = true;
    this.#button.hidden = true;
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  #look() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    this.#following = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    if (this.#following) this.#button.hidden = true;
  }
}
