export { createContext } from "preact";
export { Component, h, html, render } from "htm/preact";
export * from "preact/hooks";
