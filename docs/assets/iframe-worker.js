// A page opened as a file may not start a Worker, and the search runs in one. There, run its script in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.documentElement.appendChild(this.frame)
      const inside = this.frame.contentWindow
      // What the script posts goes to the page.
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...urls) => urls.reduce((last, next) => last.then(() => load(inside, next)), Promise.resolve())
      load(inside, url).then(() => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach(data => this.postMessage(data))
      })
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }
    terminate() { this.frame.remove() }
  }

  function load(inside, url) {
    return new Promise((resolve, reject) => {
      const script = inside.document.createElement("script")
      script.src = new URL(url, location.href)
      script.onload = resolve
      script.onerror = reject
      inside.document.body.appendChild(script)
    })
  }
}
